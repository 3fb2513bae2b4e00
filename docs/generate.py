"""`make docs`: write the generated pages again. Each page has a test that fails when it is out of date."""

from __future__ import annotations

from pathlib import Path

import generate_configuration
import generate_limits
import generate_reference

from triomq.broker.inspect import manual as mqstore_manual
from triomq.client.admin import manual

PAGES = {
    "configuration.md": generate_configuration.page,
    "limits.md": generate_limits.page,
    "mqadmin.md": manual.page,
    "mqstore.md": mqstore_manual.page,
    "reference/remoting.md": generate_reference.remoting_page,
    "reference/requests.md": generate_reference.requests_page,
}


def main() -> None:
    for name, page in PAGES.items():
        path = Path(__file__).resolve().parent / name
        text = page()
        path.parent.mkdir(exist_ok=True)
        changed = not path.exists() or path.read_text() != text
        path.write_text(text)
        print(f"{name}: {'written' if changed else 'up to date'}")


if __name__ == "__main__":
    main()
