"""From what moved to what it comes from: the table of rules, and nights with one known fault each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from fixtures.analysis.causes import RULES, TIME, Cause, Evidence, Scope, Sign, Where, ranked, rule_for
from fixtures.analysis.conclusions import Conclusion, conclude, runs_as
from fixtures.analysis.cycle import Attribution, Change, Share, attribute
from fixtures.analysis.intervals import Interval, Session
from fixtures.analysis.measurement import from_json
from fixtures.analysis.sides import Part, Side, first_position, of_measurement
from fixtures.analysis.wiring import wiring_sign
from tests.kit.builders import slowed
from tests.kit.nights import DEPTHS, QUIET, Fault, Night, night

ROOT = Path(__file__).resolve().parent.parent
DIFFERENCES = (
    "sglang: '0.5.23' → '0.5.24'",
    "host.kernel: '6.1' → '6.2'",
    "reported.disable_cuda_graph: False → True",
    "environment.NCCL_PROTO: 'LL' → None",
    "draft: 'aa' → 'bb'",
    "reported.disable_custom_all_reduce: True → False",
    "flags.--dtype: 'float32' → 'bfloat16'",
    "accelerators: [{'sm_clock_max_mhz': 1980}] → [{'sm_clock_max_mhz': 1600}]",
)


def moved(depth: int, *, first: float | None = None, by_cost: bool = False, **logs: float) -> Attribution:
    """Parts by name (spaces as underscores) that certainly moved ln throughput by so much, all others not at all."""
    given = {Part(name.replace("_", " ")): x for name, x in logs.items()}
    given = {Part.ACCEPT_LENGTH: 0.0, **given} if TIME & {*given} else {Part.CYCLE: 0.0, **given}
    shares = tuple(Share(part, near(x), 10.0, 10.0) for part, x in given.items())
    time = -math.fsum(x for part, x in given.items() if part in TIME)
    return Attribution(
        depth,
        near(math.fsum(given.values())),
        Change(10.0, 10 * math.exp(time), near(time)),
        shares,
        by_cost=by_cost,
        first=None if first is None else near(first),
    )


def near(x: float) -> Interval:
    return Interval(x - 0.001, x, x + 0.001)


def concluded(*attributions: Attribution, signs: Mapping[int, set[Sign]] | None = None) -> dict[int, Conclusion]:
    by_depth = {a.depth: a for a in attributions}
    return conclude(by_depth, dict.fromkeys(by_depth, DIFFERENCES), signs)


def causes(*attributions: Attribution, signs: Mapping[int, set[Sign]] | None = None) -> dict[int, tuple[Cause, ...]]:
    return {d: c.causes for d, c in concluded(*attributions, signs=signs).items()}


# The table


def test_every_evidence_falls_under_some_row() -> None:
    for part in Part:
        for where in Where:
            for scope in Scope:
                assert rule_for(Evidence(part, where, scope, frozenset()))


def test_every_row_is_the_first_to_fit_something() -> None:
    signs = [frozenset[Sign](), *(frozenset({s}) for s in Sign)]
    reached = {
        RULES.index(rule_for(Evidence(part, where, scope, sign)))
        for part in Part
        for where in Where
        for scope in Scope
        for sign in signs
    }
    assert reached == set(range(len(RULES)))


def test_every_cause_has_a_row() -> None:
    assert {rule.cause for rule in RULES} == set(Cause)


@pytest.mark.parametrize(
    ("evidence", "first"),
    [
        (Evidence(Part.VERIFY, Where.UNKNOWN, Scope.SEVERAL, frozenset()), "environment.NCCL_PROTO"),
        (Evidence(Part.VERIFY, Where.UNKNOWN, Scope.ONE, frozenset()), "reported.disable_cuda_graph"),
        (Evidence(Part.DRAFT, Where.UNKNOWN, Scope.SEVERAL, frozenset()), "reported.disable_cuda_graph"),
        (Evidence(Part.ACCEPT_LENGTH, Where.FIRST, Scope.SEVERAL, frozenset()), "draft"),
        (Evidence(Part.ACCEPT_LENGTH, Where.LATER, Scope.SEVERAL, frozenset()), "draft"),
        (Evidence(Part.ACCEPT_LENGTH, Where.FIRST, Scope.ONE, frozenset()), "reported.disable_cuda_graph"),
        (Evidence(Part.CYCLE, Where.UNKNOWN, Scope.EVERY, frozenset()), "accelerators"),
        (Evidence(Part.UNEXPLAINED, Where.UNKNOWN, Scope.SEVERAL, frozenset()), "host.kernel"),
    ],
)
def test_the_most_suspicious_difference_comes_first_for_each_kind_of_change(evidence: Evidence, first: str) -> None:
    ordered = ranked(DIFFERENCES, rule_for(evidence).suspects)
    assert ordered[0].startswith(f"{first}:")
    assert sorted(ordered) == sorted(DIFFERENCES)


def test_for_a_slower_verify_nccl_comes_before_all_reduce_before_graphs_before_software() -> None:
    ordered = ranked(DIFFERENCES, rule_for(Evidence(Part.VERIFY, Where.FIRST, Scope.SEVERAL, frozenset())).suspects)
    assert [line.partition(":")[0] for line in ordered[:4]] == [
        "environment.NCCL_PROTO",
        "reported.disable_custom_all_reduce",
        "reported.disable_cuda_graph",
        "sglang",
    ]


def test_what_nobody_suspects_comes_last_in_the_order_it_came_in() -> None:
    assert ranked(["b: 1 → 2", "a: 1 → 2", "draft: 1 → 2"], ("draft",)) == ("draft: 1 → 2", "b: 1 → 2", "a: 1 → 2")


def test_variables_that_the_suite_sets_for_itself_are_no_suspects() -> None:
    assert ranked(["environment.EAGLE3_PERF_DRILL: None → 'slow-verify=15%'"], ("environment.*",)) == ()


# What moved, where


def test_a_slower_verify_at_every_depth_is_verify() -> None:
    seen = causes(moved(1, verify=-0.1), moved(2, verify=-0.1), moved(3, verify=-0.1))
    assert seen == {1: (Cause.VERIFY,), 2: (Cause.VERIFY,), 3: (Cause.VERIFY,)}


def test_two_parts_that_moved_give_two_causes_the_larger_first() -> None:
    assert causes(moved(2, verify=-0.02, accept_length=-0.1, first=-0.1))[2] == (Cause.ACCEPTANCE, Cause.VERIFY)


def test_a_part_that_may_not_have_moved_gives_no_cause() -> None:
    assert causes(moved(2, verify=-0.0005))[2] == ()


def test_a_cycle_that_moved_though_no_phase_certainly_did_is_a_cycle() -> None:
    wide = Interval(-0.08, -0.03, 0.02)
    shares = tuple(Share(part, wide) for part in (Part.VERIFY, Part.UNEXPLAINED))
    seen = Attribution(2, near(-0.06), Change(10, 10.6, near(0.06)), (Share(Part.ACCEPT_LENGTH, near(0)), *shares))
    assert causes(seen)[2] == (Cause.CYCLE,)


def test_one_depth_among_three_points_to_its_own_graph() -> None:
    seen = concluded(moved(1, cycle=0.0), moved(2, cycle=-0.1), moved(3, cycle=0.0))[2]
    assert "Only this depth's cycle moved" in seen.message
    assert seen.differences[0].startswith("reported.disable_cuda_graph")


def test_one_depth_of_two_does_not_stand_alone() -> None:
    seen = concluded(moved(2, cycle=-0.1), moved(3, cycle=0.0))[2]
    assert "Only this depth's" not in seen.message


def test_plain_server_and_depths_alike_are_the_host_or_the_engine() -> None:
    seen = causes(moved(0, cycle=-0.05), moved(2, verify=-0.045, draft=-0.005), moved(3, cycle=-0.05))
    assert set(seen.values()) == {(Cause.HOST_OR_ENGINE,)}


def test_of_a_plain_server_that_alone_was_measured_it_is_not_said_that_others_stayed() -> None:
    (only,) = conclude({0: moved(0, cycle=-0.05)}).values()
    assert only.causes == (Cause.HOST_OR_ENGINE,)
    assert "Only the plain server was measured" in only.message


def test_plain_server_and_depths_that_moved_by_different_amounts_are_not_alike() -> None:
    seen = causes(moved(0, cycle=-0.05), moved(2, verify=-0.10))
    assert seen == {0: (Cause.PLAIN_SERVER,), 2: (Cause.VERIFY,)}


def test_every_cost_that_fell_while_the_plain_server_became_slower_is_the_plain_servers() -> None:
    costs = [moved(d, cycle=0.1, by_cost=True) for d in (1, 2, 3)]
    assert set(causes(moved(0, cycle=-0.1), *costs).values()) == {(Cause.PLAIN_SERVER,)}


@pytest.mark.parametrize(
    ("verify", "causes_seen"), [(0.7 * 0.1, (Cause.PLAIN_SERVER,)), (0.03, (Cause.DRAFT, Cause.VERIFY))]
)
def test_a_single_cost_that_fell_is_the_plain_servers_only_where_every_phase_fell(
    verify: float, causes_seen: tuple[Cause, ...]
) -> None:
    """At 7 of 10 ms verify moves by 7 % where the whole moves by 10 %."""
    shares = (Share(Part.VERIFY, near(verify), 7.0, 6.3), Share(Part.DRAFT, near(0.1 - verify), 3.0, 2.7))
    length = Share(Part.ACCEPT_LENGTH, near(0.0), 2.0, 2.0)
    cost = Attribution(2, near(0.1), Change(10, 9.05, near(-0.1)), (length, *shares), by_cost=True)
    assert causes(moved(0, cycle=-0.1), cost)[2] == causes_seen


def test_every_cost_that_fell_while_the_plain_server_stood_still_is_the_cycles() -> None:
    costs = [moved(d, cycle=0.1, by_cost=True) for d in (1, 2, 3)]
    seen = causes(moved(0, cycle=0.0), *costs)
    assert seen[0] == ()
    assert {seen[d] for d in (1, 2, 3)} == {(Cause.CYCLE,)}


def test_every_phase_by_the_cycles_factor_points_to_clocks() -> None:
    then = {Part.DRAFT: 2.0, Part.VERIFY: 7.0, Part.UNEXPLAINED: 1.0}
    log = math.log(1.05)
    shares = tuple(Share(p, near(-log * ms / 10), ms, ms * 1.05) for p, ms in then.items())
    seen = Attribution(2, near(-log), Change(10, 10.5, near(log)), (Share(Part.ACCEPT_LENGTH, near(0)), *shares))
    conclusion = concluded(seen)[2]
    assert conclusion.causes == (Cause.EVERY_PHASE,)
    assert conclusion.differences[0].startswith("accelerators")


def test_acceptance_is_the_recursions_where_position_one_stands_still() -> None:
    assert causes(moved(2, accept_length=-0.1, first=0.0))[2] == (Cause.RECURSION,)


def test_acceptance_is_the_recursions_where_position_one_moved_the_other_way() -> None:
    """Verifies begin elsewhere when later drafts are refused more often, which moves position 1 a little."""
    assert causes(moved(2, accept_length=-0.1, first=0.03))[2] == (Cause.RECURSION,)


def test_without_histograms_depth_one_tells_whether_position_one_moved() -> None:
    assert causes(moved(1), moved(3, accept_length=-0.1))[3] == (Cause.RECURSION,)
    assert causes(moved(1, accept_length=-0.1), moved(3, accept_length=-0.1))[3] == (Cause.ACCEPTANCE,)


def test_without_either_it_is_said_that_the_position_is_not_known() -> None:
    assert "from which position on isn't known" in concluded(moved(3, accept_length=-0.1))[3].message


def test_nothing_that_moved_is_said_without_a_list_of_what_differs() -> None:
    seen = concluded(moved(2, cycle=0.0))[2]
    assert seen.causes == ()
    assert "differs" not in seen.message


def test_a_message_has_the_sentence_where_to_look_and_what_differs() -> None:
    assert concluded(moved(2, verify=-0.1))[2].message.startswith(
        "2 steps lost 9.5 % (±0.1): verify 10.00 → 10.00 ms explains 9.5; accept length 10.000 → 10.000, 0.0 (±0.1). "
        "The verify is the target's forward over depth + 1 tokens: look at NCCL settings, the choice of all-reduce and "
        "graphs first. What differs from then, most suspicious first: environment.NCCL_PROTO: 'LL' → None; "
    )


def test_where_nothing_differs_that_is_said() -> None:
    seen = conclude({2: moved(2, verify=-0.1)})[2].message
    assert seen.endswith("Nothing else that is known of host, software or flags differs from then.")


# Nights with one known fault


def ever(part: Part, factor: float) -> Fault:
    return Fault(slower={part: factor})


SPECULATIVE = (Part.DRAFT, Part.VERIFY, Part.EXTEND, Part.UNEXPLAINED)
FAULTS: dict[str, tuple[Fault, dict[int, Cause]]] = {
    "none": (QUIET, {}),
    "verify + 2 %": (ever(Part.VERIFY, 1.02), dict.fromkeys(DEPTHS, Cause.VERIFY)),
    "verify + 15 %": (ever(Part.VERIFY, 1.15), dict.fromkeys(DEPTHS, Cause.VERIFY)),
    "draft + 20 %": (ever(Part.DRAFT, 1.2), dict.fromkeys(DEPTHS, Cause.DRAFT)),
    "extend + 20 %": (ever(Part.EXTEND, 1.2), dict.fromkeys(DEPTHS, Cause.EXTEND)),
    "between phases + 50 %": (ever(Part.UNEXPLAINED, 1.5), dict.fromkeys(DEPTHS, Cause.UNEXPLAINED)),
    "every phase + 3 %": (Fault(slower=dict.fromkeys(SPECULATIVE, 1.03)), dict.fromkeys(DEPTHS, Cause.EVERY_PHASE)),
    "all servers + 3 %": (Fault(slower=dict.fromkeys(Part, 1.03)), dict.fromkeys((0, *DEPTHS), Cause.HOST_OR_ENGINE)),
    "plain server + 3 %": (ever(Part.CYCLE, 1.03), {0: Cause.PLAIN_SERVER}),
    "verify + 30 % at 3 steps": (Fault(slower={Part.VERIFY: 1.3}, depths=frozenset({3})), {3: Cause.VERIFY}),
    "wrong layers": (Fault("wrong layers"), dict.fromkeys(DEPTHS, Cause.WRONG_LAYERS)),
    "one wrong layer": (Fault("one wrong layer"), dict.fromkeys(DEPTHS, Cause.ACCEPTANCE)),
    "draft loses its own output": (Fault("draft loses its own output"), dict.fromkeys((2, 3, 5), Cause.RECURSION)),
    "3 steps run for 2": (Fault(runs={2: 3}), {2: Cause.ANOTHER_DEPTH}),
}


def night_concluded(fault: Fault, seed: int) -> dict[int, tuple[Cause, ...]]:
    """What a night with the fault is concluded to be, from figures alone."""
    then, now = as_sides(night(seed=500 + seed)), as_sides(night(fault, seed=seed))
    attributions = {d: attribute(then[d], now[d]) for d in now}
    return {d: c.causes for d, c in conclude(attributions, signs={d: signs(then, now[d]) for d in now}).items()}


def as_sides(of: Night) -> dict[int, Side]:
    return {d: of_measurement(m, phases=of.phases.get(d)) for d, m in of.measured.items()}


def signs(then: Mapping[int, Side], now: Side) -> set[Sign]:
    found: set[Sign] = set()
    if runs_as(now, then):
        found.add(Sign.ANOTHER_DEPTH)
    if now.depth and wiring_sign(now, expected_first(then[now.depth]), text_is_right=True, healthy=True):
        found.add(Sign.WRONG_LAYERS)
    return found


def expected_first(side: Side) -> float:
    tallies = first_position(side).values()
    return sum(t.accepted for t in tallies) / sum(t.reached for t in tallies)


def test_a_fault_as_small_as_its_phases_errors_is_the_cycles_and_no_other_phases() -> None:
    """0.5 % of verify is 0.4 % of the cycle, and phases err by 0.2 %: seen in the cycle, and mostly in verify."""
    seen = Counter(c for seed in range(10) for c in night_concluded(ever(Part.VERIFY, 1.005), seed).values())
    assert seen[()] == 10
    assert seen[Cause.VERIFY,] + seen[Cause.CYCLE,] == 40


def test_the_documents_table_of_faults_is_the_one_that_is_tested() -> None:
    text = (ROOT / "docs" / "attribution.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and line.endswith(" 5 of 5 |")]
    written = {row[0].removeprefix("| "): row[1] for row in rows}
    told = {
        name: " and ".join({c.value for c in expected.values()}) or "nothing" for name, (_, expected) in FAULTS.items()
    }
    assert written == told


@pytest.mark.parametrize("injected", FAULTS)
def test_a_fault_is_concluded_to_be_itself(injected: str) -> None:
    """The confusion table of docs/attribution.md: every night on the diagonal, and no depth blamed beside it."""
    fault, expected = FAULTS[injected]
    seen = Counter(tuple(sorted(night_concluded(fault, seed).items())) for seed in range(5))
    whole = {d: (expected[d],) if d in expected else () for d in (0, *DEPTHS)}
    assert seen == {tuple(sorted(whole.items())): 5}


def test_counts_of_three_steps_under_the_name_of_two_are_recognised() -> None:
    then, now = as_sides(night(seed=1)), as_sides(night(Fault(runs={2: 3}), seed=2))
    assert runs_as(now[2], then) == 3
    assert runs_as(now[3], then) is None


def test_counts_of_no_known_depth_are_no_other_depth() -> None:
    then, now = as_sides(night(seed=1)), as_sides(night(Fault("wrong layers"), seed=2))
    assert runs_as(now[2], then) is None


def test_on_a_night_that_alternates_a_slower_plain_server_is_told_from_a_faster_cycle() -> None:
    then, now = night(seed=1).measured, night(ever(Part.CYCLE, 1.05), seed=2).measured
    attributions = {
        d: attribute(of_measurement(then[d], then[0]), of_measurement(now[d], now[0])) for d in (0, *DEPTHS)
    }
    assert {c.causes for c in conclude(attributions).values()} == {(Cause.PLAIN_SERVER,)}


def test_on_a_night_that_alternates_a_slower_host_has_no_cause_at_any_depth() -> None:
    then, now = night(seed=1).measured, {d: slowed(m, 1.2) for d, m in night(seed=2).measured.items()}
    attributions = {d: attribute(of_measurement(then[d], then[0]), of_measurement(now[d], now[0])) for d in DEPTHS}
    assert {c.causes for c in conclude(attributions).values()} == {()}


# Recorded on H200s


def recorded(folder: str) -> dict[int, Side]:
    files = sorted((ROOT / "perf" / "recordings" / "h200" / folder).glob("depth-[02].json"))
    measured = [from_json(p.read_text(encoding="utf-8")) for p in files]
    return {m.depth: of_measurement(m) for m in measured}


def recorded_causes(folder: str, then: str = "2026-11-29-sweep", *, boots: float = 0.0) -> dict[int, Conclusion]:
    before, after = recorded(then), recorded(folder)
    apart = Session(boot=boots) if boots else None
    attributions = {d: attribute(before[d], after[d], session=apart) for d in after}
    found = {d: {Sign.WRONG_LAYERS} for d in after if wiring_sign(after[d], 0.65, text_is_right=True, healthy=True)}
    return conclude(attributions, signs=found)


def test_the_recorded_control_with_wrong_layers_is_named_and_nothing_else() -> None:
    seen = recorded_causes("2026-11-29-control-wrong-layers", boots=0.002)
    assert {d: c.causes for d, c in seen.items()} == {0: (), 2: (Cause.WRONG_LAYERS,)}
    assert "accept length 2.050 → 1.000 explains" in seen[2].sentence


def test_another_gpu_one_percent_faster_moved_both_servers_and_no_count() -> None:
    seen = recorded_causes("2026-11-29-other-gpu")
    assert all(c.attribution.counts_equal for c in seen.values())
    assert [100 * c.attribution.change.centre for c in seen.values()] == pytest.approx([0.9, 1.2], abs=0.1)


def test_another_boot_is_no_cause_once_it_is_known_how_far_boots_lie_apart() -> None:
    seen = recorded_causes("2026-11-29-second-boots", boots=0.002)
    assert {c.causes for c in seen.values()} == {()}


# The wrong-layer signature


def test_the_signature_of_wrong_layers_is_named_with_what_to_compare() -> None:
    seen = wiring_sign(as_sides(night(Fault("wrong layers"), seed=1))[2], 0.636, text_is_right=True, healthy=True)
    assert str(seen).startswith(
        "Wrong-layer signature at 2 steps: the first guess is accepted in 0.496 of the verifies"
    )
    assert "eagle_aux_hidden_state_layer_ids" in str(seen)


def test_acceptance_as_expected_has_no_signature() -> None:
    assert wiring_sign(as_sides(night(seed=1))[2], 0.636, text_is_right=True, healthy=True) is None


@pytest.mark.parametrize(("text_is_right", "healthy"), [(False, True), (True, False)])
def test_a_wrong_text_or_an_unhealthy_server_points_elsewhere(text_is_right: bool, healthy: bool) -> None:
    now = as_sides(night(Fault("wrong layers"), seed=1))[2]
    assert wiring_sign(now, 0.636, text_is_right=text_is_right, healthy=healthy) is None


def test_a_few_verifies_cannot_be_certain_of_the_signature() -> None:
    now = as_sides(night(Fault("wrong layers"), seed=1))[2]
    one = Side(2, now.figures, now.tokens, now.verifies, accepted={"kjv-01": (6, 2, 2)})
    assert wiring_sign(one, 0.636, text_is_right=True, healthy=True) is None


def test_without_position_one_nothing_is_said() -> None:
    now = as_sides(night(Fault("wrong layers"), seed=1))[2]
    blind = Side(2, now.figures, now.tokens, now.verifies)
    assert wiring_sign(blind, 0.636, text_is_right=True, healthy=True) is None
