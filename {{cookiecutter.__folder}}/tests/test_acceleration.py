"""What makes a step faster, or lets it need less memory, changes nothing that is learned."""

import copy
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.utils as dynamo
from conftest import FOLDERS, call, run, train
from frame import acceleration, config, distributed, errors, introduction, optimization
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

SETTINGS = config.TrainConfig()
EXACT = ("--optim.name", "sgd", "--optim.lr", "0.05", "--train.max_iterations", "30")


def convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Flatten(), nn.Linear(8 * 36, 2))


def test_channels_last_changes_the_layout_of_weights_and_inputs_alone() -> None:
    seen: list[Tensor] = []
    plain = convolutions()
    changed = acceleration.accelerate(convolutions(), replace(SETTINGS, channels_last=True))
    convolution = changed.get_submodule("0")
    convolution.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    inputs = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(changed(inputs), plain(inputs))
    for tensor in (convolution.get_parameter("weight"), seen[0]):
        assert tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def test_what_an_optimizer_remembers_gets_the_layout_of_its_weight() -> None:
    optimizers = []
    for channels_last in (False, True):
        torch.manual_seed(0)
        model = acceleration.accelerate(convolutions(), replace(SETTINGS, channels_last=channels_last))
        optimizers.append(torch.optim.AdamW(model.parameters(), 0.1, fused=True))
        torch.manual_seed(1)
        model(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizers[-1].step()
    plain, changed = optimizers
    expected = {name: value.clone() for name, value in changed.state[changed.param_groups[0]["params"][0]].items()}
    # As a run that resumes in another layout does.
    changed.load_state_dict(plain.state_dict())
    optimization.lay_out_like_weights(changed)
    weight = changed.param_groups[0]["params"][0]
    for name, value in changed.state[weight].items():
        torch.testing.assert_close(value, expected[name])
        assert value.dim() == 0 or value.stride() == weight.stride()


@pytest.mark.parametrize("asked", [config.OptimConfig(name="adamw"), config.OptimConfig(name="sgd")])
def test_complex_weights_learn_too(asked: config.OptimConfig) -> None:
    """For them, torch has no kernel that updates all weights."""
    model = nn.ParameterList([torch.ones(2, dtype=torch.cfloat), torch.ones(2)])
    optimizer = optimization.create_optimizer(model, replace(config.Config(), optim=asked), 1)
    sum(weight.abs().sum() for weight in model).backward()
    optimizer.step()
    assert all(bool((weight.abs() < 1).all()) for weight in model)


class Own(nn.Module):
    """A model whose forward pass is not torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = convolutions()

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.layers(inputs)
        return scores


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What torch.compile has found to compile, which then runs as it is, so that no compiler is required."""
    found: list[object] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        found.append(graph)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=keep))
    monkeypatch.setattr(shutil, "which", lambda name: name)
    return found


@pytest.mark.parametrize("create", [convolutions, Own])
def test_a_model_is_compiled_whatever_its_class_and_so_is_a_copy(
    create: Callable[[], nn.Module], graphs: list[object]
) -> None:
    model = acceleration.accelerate(create(), replace(SETTINGS, compile=True))
    inputs = torch.randn(4, 3, 8, 8)
    expected = create()(inputs)
    torch.testing.assert_close(model(inputs), expected)
    assert len(graphs) == 1
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in copied.parameters():
            weight.zero_()
    # With weights of its own.
    assert not copied(inputs).any()
    torch.testing.assert_close(model(inputs), expected)
    assert model.state_dict().keys() == create().state_dict().keys()


def test_the_parts_of_a_model_are_compiled_where_the_task_calls_them(graphs: list[object]) -> None:
    many = nn.ModuleList(nn.Linear(3 + number, 4 + number) for number in range(10))
    model = nn.Module()
    model.first, model.others = convolutions(), nn.ModuleDict({"one": nn.Linear(2, 3), "many": many})
    acceleration.accelerate(model, replace(SETTINGS, compile=True), calls_parts=True)
    assert "forward" not in vars(model)
    inputs = torch.randn(4, 3, 8, 8)
    for number, part in enumerate([model.first, model.others["one"], *many], 1):
        inputs = part(inputs)
        assert len(graphs) == number


def test_it_is_told_if_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for graphs, says in ((0, True), (1, False)):
        caplog.clear()
        monkeypatch.setitem(dynamo.counters, "stats", {"unique_graphs": graphs})
        introduction.tell_of_compiling(0.0)
        assert ("has compiled nothing" in caplog.text) == says


def kept_bytes(model: nn.Module, inputs: Tensor) -> tuple[int, list[Tensor]]:
    """Return the bytes that are kept for the backward pass, and the gradients."""
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    torch.manual_seed(0)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(inputs).sum()
    loss.backward()
    return sum(sizes), [weight.grad for weight in model.parameters() if weight.grad is not None]


class Blocks(nn.Module):
    """One block after the other, each added to what goes in."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def test_activations_of_blocks_are_computed_again_with_the_same_random_numbers() -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.5), nn.Linear(32, 8))

    torch.manual_seed(1)
    model, inputs = Blocks(block(), block(), block()), torch.randn(16, 8)
    plain, gradients = kept_bytes(model, inputs)
    model.zero_grad()
    fewer, same = kept_bytes(acceleration.accelerate(model, replace(SETTINGS, activation_checkpointing=True)), inputs)
    assert fewer < plain / 4
    assert len(same) == 12
    for one, other in zip(gradients, same, strict=True):
        assert torch.equal(one, other)


def with_and_without_checkpointing(
    create_block: Callable[[], nn.Module], compiled: bool = False
) -> Iterator[list[Tensor]]:
    """Yield the buffers and the gradients of two blocks after two steps that keep activations, and that compute them again."""
    for checkpointing in (False, True):
        torch.manual_seed(0)
        settings = replace(SETTINGS, activation_checkpointing=checkpointing, compile=compiled)
        model = acceleration.accelerate(Blocks(create_block(), create_block()), settings)
        for _ in range(2):
            model(3 * torch.randn(16, 8)).square().sum().backward()
        yield [*model.buffers(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]


def test_what_is_computed_again_is_not_counted_again() -> None:
    plain, again = with_and_without_checkpointing(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    assert len(plain) == len(again) == 14
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)


class Interrupted(nn.BatchNorm1d):
    """Python has to look at a number, so that torch.compile cannot take the block as a whole."""

    def forward(self, x: Tensor) -> Tensor:
        if x.mean() > 100:
            x = x.clamp(max=100)
        return super().forward(x)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, Interrupted])
def test_what_is_compiled_and_computed_again_is_not_counted_again(
    norm: Callable[[int], nn.Module], graphs: list[object]
) -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), norm(8))

    plain, again = with_and_without_checkpointing(block, compiled=True)
    assert graphs
    assert len(plain) == len(again) == 14
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_computed_again_starts_from_the_same_buffers() -> None:
    class Scaled(nn.Linear):
        scale: Tensor

        def __init__(self) -> None:
            super().__init__(8, 8)
            self.register_buffer("scale", torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            self.scale = 0.5 * self.scale + 0.5 * x.detach().std(dim=0)
            return super().forward(x * self.scale).tanh()

    plain, again = with_and_without_checkpointing(Scaled)
    assert len(plain) == len(again) == 6
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(errors.UsageError, match=r"keeps its repeated parts as self\.blocks"):
        acceleration.accelerate(convolutions(), replace(SETTINGS, activation_checkpointing=True))


def test_compiling_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PATH", "CXX", "CC"):
        monkeypatch.setenv(name, str(tmp_path))
    with pytest.raises(errors.UsageError, match=r"requires one of the compilers g\+\+, .*: install it, or leave it"):
        acceleration.accelerate(nn.Linear(1, 1), config.TrainConfig(compile=True))


def test_products_are_rounded_as_asked() -> None:
    try:
        acceleration.accelerate(convolutions(), replace(SETTINGS, matmul_precision="medium"))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_two_processes_learn_the_same_with_all_of_it(tmp_path: Path) -> None:
    faster = ("--train.activation_checkpointing", "true", "--train.channels_last", "true")
    exchange = ["--distributed.bucket_mib", "1", "--distributed.static_graph", "true"]
    if not distributed.transport.BUCKETS:
        refused = call("train", *exchange)
        assert (refused.code, "leave distributed.bucket_mib 25" in refused.errors) == (2, True), refused.errors
        exchange.clear()
    alone, two = train(tmp_path / "alone", 1, *EXACT), train(tmp_path / "two", 2, *EXACT, *faster, *exchange)
    assert two.summary["iteration"] == 30
    for name, weight in alone.weights().items():
        torch.testing.assert_close(two.weights()[name], weight, rtol=0, atol=1e-5)


def test_a_static_graph_has_one_backward_pass_in_each_step() -> None:
    refused = call("train", "--distributed.static_graph", "true", "--optim.accumulation_steps", "2")
    assert (refused.code, refused.errors.count("set optim.accumulation_steps 1")) == (2, 1), refused.errors


IN_A_NEW_PROCESS = """
import resource
import sys
from collections.abc import Callable, Iterator
from small.__main__ import main

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

size = int(sys.argv.pop(1)) * 2**20
if main(sys.argv[1:]):
    sys.exit("the training failed")
before = resident_mib()
blocks = [bytearray(b"1") * size for _ in range(4)]
full = resident_mib() - before
# What lies after a block keeps the heap from shrinking.
small = [bytearray(b"1") * 2**20 for _ in range(4)]
blocks.clear()
left = resident_mib() - before
start = faults()
blocks = [bytearray(b"1") * size for _ in range(4)]
print("MEASURED", full, left, faults() - start)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there does a C library give the memory back")
@pytest.mark.parametrize(("block_mib", "is_kept"), [(16, True), (64, False)])
def test_small_blocks_are_kept_for_the_next_step_and_large_ones_leave_no_holes(
    block_mib: int, is_kept: bool, tmp_path: Path
) -> None:
    """A hole that the next block does not fit into is lost: memory would grow with every step."""
    step = ["train", "--train.run_dir", str(tmp_path / "run"), "--train.max_iterations", "1", *distributed.TRIAL]
    said = run([sys.executable, "-c", IN_A_NEW_PROCESS, str(block_mib), *step], FOLDERS["small"])
    assert said.code == 0, said.errors
    full, left, faults = map(int, said.output.rpartition("MEASURED ")[2].split())
    pages = 4 * block_mib * 2**20 // resource.getpagesize()
    assert full >= 3 * block_mib
    if is_kept:
        # Small blocks of others come to lie in between.
        assert left >= 3 * block_mib and faults < pages / 2, said.output
    else:
        assert left < block_mib and faults >= pages, said.output
