"""Only e-mail addresses are accepted that no mail program can misread."""

import re

import pytest

from pqkeep_gateway.outgoing_mail import EMAIL_PATTERN, is_email

ACCEPTED = (
    "ada@example.com",
    "Ada.Lovelace+keep@example.com",
    "ada-lovelace@example.com",
    "ada/notes|x@example.com",
    "o'brien@example.co.uk",
    "_ada@xn--bcher-kva.example",
    "1@localhost",
    "a" * 64 + "@example.com",
    "a@" + "b" * 63 + ".example",
)
REFUSED = (
    *("", "@", "a@", "@example.com", "ada", "ada@@example.com", "ada@b@example.com"),
    *("-oQ/tmp@example.com", "-@example.com", "--help@example.com"),
    *("|id@example.com", "/etc/passwd@example.com"),
    *("ada@-example.com", "ada@example-.com", "ada@example.com-", "ada@--x", "ada@a.-b.c"),
    *(".ada@example.com", "ada.@example.com", "a..b@example.com"),
    *("ada@.example.com", "ada@example..com", "ada@example.com."),
    *("ada @example.com", " ada@example.com", "ada@example.com ", "ada@exam ple.com"),
    *("ada\n@example.com", "ada@example.com\n", "ada@example.com\r\nBcc: x@example.com"),
    *("ada\0@example.com", "ada@example.com\0", "ada\x7f@example.com", "ada\t@example.com"),
    *('"ada"@example.com', '"a b"@example.com', "<ada@example.com>", "Ada <ada@example.com>"),
    *("ada@example.com, x@example.com", "ada@example.com;x@example.com", "ada(x)@example.com"),
    *("@a,@b:ada@example.com", "ada@[127.0.0.1]", "ada@[IPv6:::1]", "ada@example.com:25"),
    *("ada\\@example.com", "ada[x]@example.com", "a:b@example.com", "mailto:ada@example.com"),
    *(
        "\u00e4da@example.com",
        "ada@b\u00fccher.example",
        "ada@example\uff0ecom",
        "\u202eada@example.com",
    ),
    *("a" * 65 + "@example.com", "a@" + "b" * 64 + ".example", "a@" + 63 * "b.cd" + ".example"),
)


@pytest.mark.parametrize("address", ACCEPTED)
def test_an_address(address: str) -> None:
    """A valid address is accepted by the function and by the pattern in the API's document."""
    assert is_email(address)
    assert re.search(EMAIL_PATTERN, address)


@pytest.mark.parametrize("address", REFUSED)
def test_what_is_no_address_or_more_than_one(address: str) -> None:
    """A text that mail programs can read as an option, a file, a program or a header is refused."""
    assert not is_email(address)
