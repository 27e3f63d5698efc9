"""``pqkeepd doctor``: what it prints of what others wrote."""

from pathlib import Path

from typer.testing import CliRunner

from pqkeep_server.cli import app


def test_the_terminal_obeys_no_file_s_name(tmp_path: Path) -> None:
    """A name is escaped: it moves no cursor, and is no line of its own."""
    for folder in ("gateway", "keyservice", "run"):
        (tmp_path / folder).mkdir(mode=0o700)
    (tmp_path / "gateway" / "a\x1b[2J\ngateway: good").touch(mode=0o644)
    ended = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert ended.exit_code == 1
    assert "a\\x1b[2J\\ngateway: good" in ended.stdout
    assert "\x1b" not in ended.stdout
    assert "gateway: good" not in ended.stdout.splitlines()
