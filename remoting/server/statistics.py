"""Snapshots of a server's counters since its start."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import attrs

RPC_EDGES_SECONDS = (0.001, 0.003, 0.005, 0.007, 0.01, 0.1, 1.0, 2.0, 3.0)
"""Java's buckets. Source: remoting/metrics/RemotingMetricsManager.java."""
CREATE_EDGES_SECONDS = (0.01, 0.1, 1.0, 3.0, 5.0)
"""Java's buckets of the time to create a topic or a group."""
LATENCY_EDGES: tuple[float, ...] = tuple(
    sorted({*(2**power / 1e6 for power in range(40)), *RPC_EDGES_SECONDS, *CREATE_EDGES_SECONDS})
)
"""Upper edges (s) of the buckets of latencies: powers of two of a microsecond, and Java's."""
LATENCY_BUCKETS = len(LATENCY_EDGES) + 1


def rebucketed(latency: Sequence[int], edges: Sequence[float]) -> list[int]:
    """Return the counts for these edges, which are some of ``LATENCY_EDGES``, and for the rest."""
    counts, done = [], 0
    for edge in edges:
        end = bisect_left(LATENCY_EDGES, edge) + 1
        counts.append(sum(latency[done:end]))
        done = end
    return [*counts, sum(latency[done:])]


@attrs.define
class CodedAnswers:
    """The answers with one response code other than 0."""

    latency: list[int] = attrs.field(factory=lambda: [0] * LATENCY_BUCKETS)
    seconds: float = 0.0

    def plus(self, other: "CodedAnswers") -> "CodedAnswers":
        """Return the sum of both."""
        latency = [a + b for a, b in zip(self.latency, other.latency)]
        return CodedAnswers(latency, self.seconds + other.seconds)


@attrs.define
class CodeStatistics:
    """The counters of one request code.

    ``requests`` reached the handler, ``refused`` were answered busy, ``failed`` ended in an
    unexpected error. ``errors`` are answers with an error code, including failed ones; an empty
    pull is not an error. ``latency`` counts answers by the time since the request was read, see
    ``LATENCY_EDGES``; the oldest request of a batch stands for all. ``coded`` has those among them
    whose response code is not 0. ``queued`` requests waited in the pool's queue, ``wait_seconds``
    in sum, at most ``wait_seconds_max``; all others ran as soon as they were read.
    """

    requests: int = 0
    refused: int = 0
    failed: int = 0
    errors: int = 0
    answer_seconds: float = 0.0
    latency: list[int] = attrs.field(factory=lambda: [0] * LATENCY_BUCKETS)
    queued: int = 0
    wait_seconds: float = 0.0
    wait_seconds_max: float = 0.0
    coded: dict[int, CodedAnswers] = attrs.field(factory=dict)
    unfiled: dict[int, int] = attrs.field(factory=dict)
    """Response code -> answers of the batch that is being answered."""

    def note_answered(self, count: int, seconds: float) -> None:
        """Count *count* answers, the oldest of which took *seconds*. Called once for each batch."""
        self.answer_seconds += count * seconds
        self.latency[bisect_left(LATENCY_EDGES, seconds)] += count
        if self.unfiled:
            self.file_codes(seconds)

    def note_code(self, code: int, count: int = 1) -> None:
        """Count answers with a response code other than 0, before ``note_answered``."""
        self.unfiled[code] = self.unfiled.get(code, 0) + count

    def file_codes(self, seconds: float) -> None:
        """Count the latency of the answers that ``note_code`` was called for."""
        for code, count in self.unfiled.items():
            answers = self.coded.get(code)
            if answers is None:
                answers = self.coded[code] = CodedAnswers()
            answers.latency[bisect_left(LATENCY_EDGES, seconds)] += count
            answers.seconds += count * seconds
        self.unfiled.clear()

    def successes(self) -> CodedAnswers:
        """Return the answers with response code 0."""
        latency, seconds = self.latency.copy(), self.answer_seconds
        for answers in self.coded.values():
            latency = [max(0, all_ - one) for all_, one in zip(latency, answers.latency)]
            seconds -= answers.seconds
        return CodedAnswers(latency, max(0.0, seconds))

    def note_wait(self, count: int, seconds: float) -> None:
        """Count *count* requests that left the queue after *seconds*."""
        self.queued += count
        self.wait_seconds += count * seconds
        if seconds > self.wait_seconds_max:
            self.wait_seconds_max = seconds

    def snapshot(self) -> "CodeStatistics":
        """Return a copy that no longer changes."""
        coded = {
            code: CodedAnswers(one.latency.copy(), one.seconds) for code, one in self.coded.items()
        }
        return attrs.evolve(self, latency=self.latency.copy(), coded=coded, unfiled={})

    def plus(self, other: "CodeStatistics") -> "CodeStatistics":
        """Return the sum of two snapshots."""
        coded = dict(self.coded)
        for code, one in other.coded.items():
            coded[code] = coded.get(code, CodedAnswers()).plus(one)
        return CodeStatistics(
            self.requests + other.requests,
            self.refused + other.refused,
            self.failed + other.failed,
            self.errors + other.errors,
            self.answer_seconds + other.answer_seconds,
            [a + b for a, b in zip(self.latency, other.latency)],
            self.queued + other.queued,
            self.wait_seconds + other.wait_seconds,
            max(self.wait_seconds_max, other.wait_seconds_max),
            coded,
        )

    @property
    def answered(self) -> int:
        return sum(self.latency)

    def latency_quantile(self, share: float) -> float:
        """Return the seconds in which this share was answered: the upper edge of a bucket, or 0."""
        wanted, seen = share * self.answered, 0
        for bucket, count in enumerate(self.latency):
            seen += count
            if count and seen >= wanted:
                return LATENCY_EDGES[min(bucket, len(LATENCY_EDGES) - 1)]
        return 0.0

    @property
    def wait_seconds_mean(self) -> float:
        """The mean wait of the queued requests, in seconds."""
        return self.wait_seconds / self.queued if self.queued else 0.0


@attrs.define
class PoolStatistics:
    """One pool. Refused requests by reason: overloaded, rejected, expired or stalled."""

    workers: int = 0
    idle_workers: int = 0
    queued_requests: int = 0
    queued_bytes: int = 0
    requests_in_place: int = 0
    requests_queued: int = 0
    overloaded: int = 0
    rejected: int = 0
    expired: int = 0
    stalled: int = 0


@attrs.frozen(kw_only=True)
class ServerStatistics:
    """The counters of one server.

    Connections were closed as ``broken`` for invalid input, as ``closed_greedy`` for the memory
    they kept. ``sent_away`` counts requests that came while the server stopped.
    """

    connections: int
    accepted: int
    accepted_by_side_port: Mapping[str, int]
    turned_away: int
    closed: int
    closed_idle: int
    closed_greedy: int
    broken: int
    received_bytes: int
    sent_bytes: int
    requests: int
    unknown_requests: int
    sent_away: int
    pools: Mapping[str, PoolStatistics]
    parts: Mapping[tuple[int, bool], CodeStatistics]
    """By request code, and whether the requests were held and ran again (long polling)."""

    @property
    def codes(self) -> Mapping[int, CodeStatistics]:
        """The counters of each request code."""
        codes: dict[int, CodeStatistics] = {}
        for (code, _), one in self.parts.items():
            codes[code] = one if code not in codes else codes[code].plus(one)
        return codes
