"""The settings of the HTTP port, the same for name server and broker."""

import attrs

from triomq.remoting.core.settings import TEXT, number, optional_text, setting


@attrs.frozen(kw_only=True)
class MonitorSettings:
    """The address of the HTTP port.

    port: HTTP port with /live, /ready, /status and /metrics; 0: none. It has no TLS
    host: address that monitorPort listens on; 0.0.0.0 or :: where probes come from other machines
    token: what /status and /metrics ask for: Authorization: Bearer TOKEN; empty: nothing. The
        probes /live and /ready stay open
    series_max: series of one metric on a page of /metrics, or in an export;
        triomq_metric_series_left_out counts the others
    """

    port: int = number("monitorPort", 0, low=0, high=65_535, own=True)
    host: str = setting("monitorAddress", TEXT, "127.0.0.1", own=True)
    token: str = optional_text("monitorToken", secret=True, own=True)
    series_max: int = number("monitorSeriesMax", 10_000, low=1, high=1_000_000, own=True)
