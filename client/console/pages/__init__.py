"""All addresses of the console; each module of this package has the pages of one subject."""

from triomq.client.console.core.page_visit import Page
from triomq.client.console.pages import (
    account,
    broker,
    brokers,
    configuration,
    dead_letters,
    group_settings,
    groups,
    messages,
    policies,
    producers,
    topics,
)

PAGES: tuple[Page, ...] = (
    *account.PAGES,
    *brokers.PAGES,
    *broker.PAGES,
    *topics.PAGES,
    *groups.PAGES,
    *group_settings.PAGES,
    *messages.PAGES,
    *dead_letters.PAGES,
    *producers.PAGES,
    *policies.PAGES,
    *configuration.PAGES,
)
