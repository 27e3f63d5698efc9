"""``make docs``: write the generated tables of the documentation."""

from tests.docs.generated import REFERENCE, ROOT, document, documents

REFERENCE.mkdir(exist_ok=True)
for path in documents():
    text = document(path)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")  # noqa: T201 - its result
