"""Facts that may explain a change: seen where they are written down, and by depth where they differ by depth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fixtures.analysis.causes import RULES, Cause, ranked
from fixtures.analysis.facts import compare, context, key, same_gpus
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.records import beyond, differences, over
from fixtures.analysis.reference import Accepted, Reference, from_json, of_sweep, to_json
from fixtures.analysis.regressions import numerics_may_differ
from tests.kit.builders import measurement
from tests.kit.nights import night

HOST = {"host": "n1", "python": "3.11.7", "torch": "2.13.0", "load_1min": 3.0}
RANKS = ({"libc": {"NCCL_PROTO": "LL"}, "nccl": "2.27"}, {"libc": {"NCCL_PROTO": "LL"}, "nccl": "2.27"})


def served(depth: int = 2, host: dict[str, Any] = HOST, **server: Any) -> Measurement:
    plain = measurement(depth, host=host)
    flags = ("--speculative-num-steps", str(depth)) if depth else ()
    arguments = (*plain.server.arguments, *flags)
    return replace(plain, server=replace(plain.server, **{"arguments": arguments, **server}))


def differing(then: Measurement, now: Measurement) -> tuple[str, ...]:
    return compare(key(then), context(then), now).context


def test_the_software_is_seen_where_a_measurement_keeps_it() -> None:
    newer = served(host={**HOST, "torch": "2.14.0", "load_1min": 9.0})
    assert differing(served(), newer) == ("host.torch: '2.13.0' → '2.14.0'",)
    assert numerics_may_differ(compare(key(newer), context(served()), newer))


def test_the_software_comes_first_among_what_both_servers_share() -> None:
    plain = next(rule for rule in RULES if rule.cause is Cause.EVERY_PHASE)
    lines = ("draft: 'a' → 'b'", "host.torch: '2.13.0' → '2.14.0'")
    assert ranked(lines, plain.suspects)[0].startswith("host.torch")


def test_a_variable_that_a_scheduler_lost_is_missing_though_the_suite_set_it() -> None:
    well = served(environment={"NCCL_PROTO": "LL", "OMP": "1"}, witnesses=RANKS)
    lost = replace(well, server=replace(well.server, witnesses=(RANKS[0], {"libc": {}, "nccl": "2.27"})))
    assert differing(well, lost) == ("environment.NCCL_PROTO: 'LL' → None",)
    unseen = replace(well, server=replace(well.server, witnesses=()))
    assert differing(well, unseen) == (), "who can't be asked has lost nothing, nor changed its NCCL"


def test_nccls_version_is_compared_where_both_tell_it() -> None:
    newer = tuple({**rank, "nccl": "2.28"} for rank in RANKS)
    assert differing(served(witnesses=RANKS), served(witnesses=newer)) == ("nccl: '2.27' → '2.28'",)


def test_a_graph_that_was_not_used_is_a_difference_and_a_suspect() -> None:
    (line,) = differing(served(), served(graph_fell_back="Decode batch, cuda graph: False"))
    assert line == "graph: None → 'captured, and a single request ran without'"
    verify = next(rule for rule in RULES if rule.cause is Cause.VERIFY)
    assert ranked(("host.kernel: '6' → '7'", line), verify.suspects)[0] == line


# By depth


def accepted(*measured: Measurement) -> Reference:
    return of_sweep({m.depth: m for m in measured}, Accepted("ada", "2026-11-02T03:00:00+00:00", "first night"))


def test_a_depth_is_compared_with_what_its_own_server_was_then() -> None:
    then = from_json(to_json(accepted(served(0), served(2), served(3))))
    graphs_off = served(3, reported={"disable_cuda_graph": True})
    at = {m.depth: then.context_at(m.depth) for m in (served(2), graphs_off)}
    assert [compare(then.key, at[m.depth] or {}, m).context for m in (served(2), graphs_off)] == [
        (),
        ("reported.disable_cuda_graph: None → True",),
    ]


def test_what_a_reference_keeps_of_a_depth_is_only_what_sets_it_apart_from_the_plain_server() -> None:
    then = accepted(served(0), served(2))
    assert [then.depths[d].context for d in (0, 2)] == [{}, {"flags": {"--speculative-num-steps": "2"}}]


def test_a_reference_from_before_says_nothing_by_depth() -> None:
    old = accepted(served(0), served(2))
    old = replace(old, depths={d: replace(r, context=None) for d, r in old.depths.items()})
    assert from_json(to_json(old)).context_at(2) is None


def test_a_reference_keeps_acceptance_by_position() -> None:
    then = from_json(to_json(of_sweep(night(seed=1).measured, Accepted("ada", "2026-11-02T03:00:00+00:00", "why"))))
    assert then.depths[0].accepted is None
    counts = then.depths[2].accepted or {}
    assert {p: (sum(counts[p]),) for p in counts} == then.depths[2].verifies


def test_what_lies_beyond_a_common_record_gives_the_record_back() -> None:
    common, own = {"a": 1, "b": {"x": 1, "y": 2}}, {"b": {"x": 1, "y": 3}, "c": 4}
    assert beyond(common, own) == {"a": None, "b": {"y": 3}, "c": 4}
    assert list(differences(over(common, beyond(common, own)), own)) == []


def test_gpus_that_a_reference_has_besides_are_no_other_ones() -> None:
    """Older references have all of their host's, those too that no server took."""
    then = {"accelerators": [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]}
    on = {name: replace(served(), host={"accelerators": [{"uuid": name}]}) for name in ("GPU-b", "GPU-c")}
    assert [same_gpus(then, one) for one in on.values()] == [True, False]
    assert same_gpus({"accelerators": [{"uuid": None}]}, on["GPU-b"]) is None
