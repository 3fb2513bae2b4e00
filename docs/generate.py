"""`make docs`: write the generated pages again. Each page has a test that fails when it is out of date."""

from __future__ import annotations

from pathlib import Path

import generate_configuration

from triomq.client.admin import manual

PAGES = {"configuration.md": generate_configuration.page, "mqadmin.md": manual.page}


def main() -> None:
    for name, page in PAGES.items():
        path = Path(__file__).with_name(name)
        text = page()
        changed = not path.exists() or path.read_text() != text
        path.write_text(text)
        print(f"{path.name}: {'written' if changed else 'up to date'}")


if __name__ == "__main__":
    main()
