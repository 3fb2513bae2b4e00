"""``make docs``: write the generated pages and modules again. Each has a test that fails when it is
out of date.
"""

from __future__ import annotations

from pathlib import Path

import generate_configuration
import generate_facades
import generate_limits
import generate_mqstore
import generate_reference

from triomq.client.mqadmin import manual

DOCS = Path(__file__).resolve().parent


def pages() -> dict[str, str]:
    """Return the text of every generated page by its name in this folder."""
    return {
        "limits.md": generate_limits.page(),
        "mqstore.md": generate_mqstore.page(),
        **generate_configuration.pages(),
        **generate_reference.pages(),
        **manual.pages((DOCS / "mqadmin.md").read_text()),
    }


def main() -> None:
    texts = pages()
    texts |= {f"../triomq/{name}": text for name, text in generate_facades.files().items()}
    for name, text in texts.items():
        path = DOCS / name
        path.parent.mkdir(exist_ok=True)
        changed = not path.exists() or path.read_text() != text
        path.write_text(text)
        print(f"{name}: {'written' if changed else 'up to date'}")


if __name__ == "__main__":
    main()
