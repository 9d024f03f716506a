"""Environment layers: who set what, and who wins."""

from __future__ import annotations

from importlib.resources import files

import pytest
import yaml

from trackwalker.errors import UsageError
from trackwalker.job.run import Setting
from trackwalker.launch.request.layers import FABRICS, VENDORS, found_on_node, merge_flags, split_flags, stack
from trackwalker.launch.request.models import About, load_model
from trackwalker.launch.request.resolved import Target, resolve
from trackwalker.launch.request.rules import Rule
from trackwalker.node.network.rdma_ports import Port
from trackwalker.node.stages.stage_work import choose, fabric_of

MODEL = About(env={"NCCL_DEBUG": "INFO", "MINE": "m"}, xla_flags={"xla_a": "model", "xla_b": "model"})
RULE = Rule(name="r", when="true", env={"MINE": "r"}, xla_flags={"xla_a": "rule"})


def test_the_later_layer_wins_and_says_so() -> None:
    got = stack(MODEL, [RULE], {"NCCL_PXN_DISABLE": "1"}, "amd", "ionic").settings()
    assert got["TF_CPP_MIN_LOG_LEVEL"] == Setting(value="2", source="base")
    assert got["GPU_MAX_HW_QUEUES"] == Setting(value="2", source="vendor amd")
    assert got["IONIC_LOCKFREE"] == Setting(value="all", source="fabric ionic")
    assert got["NCCL_IB_USE_INLINE"] == Setting(value="1", source="fabric ionic")  # what every RDMA fabric shares
    assert got["NCCL_DEBUG"] == Setting(value="INFO", source="model")
    assert got["MINE"] == Setting(value="r", source="rule r")
    assert got["NCCL_PXN_DISABLE"] == Setting(value="1", source="command line")
    assert [s.source for s in stack(MODEL, [RULE]).variables["MINE"]] == ["model", "rule r"]


def test_nothing_of_amd_reaches_an_nvidia_gpu() -> None:
    amd, nvidia, unknown = (stack(About(), vendor=v).settings() for v in ("amd", "nvidia", None))
    assert set(nvidia) == set(unknown)
    own = set(amd) - set(nvidia)
    assert {"HSA_NO_SCRATCH_RECLAIM", "RCCL_MSCCLPP_ENABLE", "NVTE_USE_ROCM", "NCCL_DMABUF_ENABLE", "XLA_FLAGS"} <= own
    assert not [n for n in nvidia if n.startswith(("HSA_", "HIP_", "RCCL_", "CK_", "GPU_MAX")) or "ROCM" in n]


@pytest.mark.parametrize("fabric", FABRICS)
def test_every_fabric_has_a_layer_of_its_own(fabric: str) -> None:
    sources = {s.source for s in stack(About(), vendor="nvidia", fabric=fabric).settings().values()}
    assert sources == {"base", f"fabric {fabric}"}


def test_r08_an_explicit_empty_override_is_kept() -> None:
    got = stack(MODEL, [], {"NCCL_DEBUG": "", "NEW": ""}, "amd").settings()
    assert got["NCCL_DEBUG"] == Setting(value="", source="command line")
    assert got["NEW"] == Setting(value="", source="command line")


def test_r08_empty_xla_flags_clear_every_layers_flags() -> None:
    got = stack(MODEL, [RULE], {"XLA_FLAGS": ""}, "amd").settings()
    assert got["XLA_FLAGS"] == Setting(value="", source="command line")


def test_xla_flags_are_merged_flag_by_flag() -> None:
    got = stack(MODEL, [RULE], {"XLA_FLAGS": "--xla_b=user --xla_dump_hlo_as_text --xla_re='(?i) gpu'"}).settings()
    assert got["XLA_FLAGS"].value == "--xla_a=rule --xla_b=user --xla_dump_hlo_as_text --xla_re='(?i) gpu'"
    assert got["XLA_FLAGS"].source == "rule r + command line"


def test_xla_flags_as_text() -> None:
    assert split_flags(" --a=1\n--b --a=2 ") == {"b": "--b", "a": "--a=2"}
    assert split_flags("--re='x y' --q=\"a'b\"") == {"re": "--re='x y'", "q": '--q="a\'b"'}
    assert split_flags("") == {}
    assert merge_flags("--image=1 --a=0", "", "--a=1") == "--image=1 --a=1"
    with pytest.raises(UsageError, match="quote is not closed"):
        split_flags("--a='x")


def test_what_a_node_has_to_check() -> None:
    told = stack(About(), overrides={"NCCL_DMABUF_ENABLE": "1"}, vendor="amd").variables["NCCL_DMABUF_ENABLE"]
    assert [step.guard for step in told] == ["dmabuf", None]


def test_what_a_node_finds_is_in_no_layer() -> None:
    for vendor in VENDORS:
        for fabric in FABRICS:
            assert not set(found_on_node()) & set(stack(About(), vendor=vendor, fabric=fabric).settings())


def test_the_small_trainer_gets_only_what_it_is_given() -> None:
    assert stack(About(trainer="tiny"), overrides={"A": "b"}).settings() == {
        "A": Setting(value="b", source="command line")
    }


@pytest.mark.parametrize(("kind", "name"), [("vendor", "intel"), ("fabric", "rdma"), ("vendor", "../amd")])
def test_unknown_layers(kind: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"unknown {kind} '{name}'"):
        stack(About(), **{kind: name}).settings()  # type: ignore[arg-type]


def test_every_value_of_a_layer_is_text_with_a_reason() -> None:
    for path in sorted((files("trackwalker.launch") / "env").iterdir(), key=str):
        data = yaml.safe_load(path.read_text())
        for part in ("env", "xla_flags") if path.name != "on_node.yml" else ():
            for name, entry in (data.get(part) or {}).items():
                assert isinstance(entry["value"], str), f"{path.name}: {name}: YAML reads a number or a flag"
                assert entry["why"], f"{path.name}: {name}"


def test_what_the_submitting_machine_does_not_know_is_chosen_on_the_node() -> None:
    model = load_model("deepseek", {})
    user = {"XLA_FLAGS": "--xla_mine=1", "HF_TOKEN": "hush"}
    on_nodes = resolve(model, Target(8), {}, user).env_on_nodes()
    assert set(on_nodes) == {f"{vendor}/{fabric}" for vendor in VENDORS for fabric in FABRICS}
    assert "hush" not in str(on_nodes), "the user's own variables travel once"
    for name, env in on_nodes.items():
        assert env["XLA_FLAGS"].endswith("--xla_mine=1")
        assert ("xla_gpu_enable_command_buffer" in env["XLA_FLAGS"]) == name.startswith("amd")
    env, name = choose(on_nodes, "amd", "ionic")
    assert (name, env["IONIC_LOCKFREE"], env["HSA_NO_SCRATCH_RECLAIM"]) == ("amd/ionic", "all", "1")
    assert choose(on_nodes, "", "tcp") == ({}, ""), "no GPU here: the common layers only"
    some = resolve(model, Target(8, fabric="mlx5"), {}, user).env_on_nodes()
    assert set(some) == {"amd/mlx5", "nvidia/mlx5"}
    assert resolve(model, Target(8, vendor="amd", fabric="mlx5"), {}, user).env_on_nodes() == {}
    assert resolve(load_model("tiny", {}), Target(2), {}, user).env_on_nodes() == {}


@pytest.mark.parametrize(
    ("driver", "device", "fabric"),
    [
        ("ionic_rdma", "ionic_0", "ionic"),
        ("mlx5_core", "rocep1s0", "mlx5"),
        ("bnxt_en", "bnxt_re0", "bnxt"),
        ("", "bnxt_re0", "bnxt"),
        ("efa", "rdmap0s6", "efa"),
        ("irdma", "irdma0", "tcp"),
    ],
)
def test_a_node_knows_its_fabric_by_the_driver(driver: str, device: str, fabric: str) -> None:
    port = Port(device, "1", True, 400.0, "Ethernet", driver, "", True, "")
    assert fabric_of([port]) == fabric
    assert fabric_of([]) == "tcp"
