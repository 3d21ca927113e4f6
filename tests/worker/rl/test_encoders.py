"""Encoders of images: sizes, scale, independence of the batch, refusals (tasks.md 2)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lockstep.keys import generator
from lockstep.spec.sections import Net
from tests.worker.rl.cases import CPU, full_masks, learner_config
from worker.envs.base import HeadSpec, Observation, Seen
from worker.rl.algorithms.ppo_anchor import next_values
from worker.rl.encoders import Encoder, Encoders
from worker.rl.heads import Heads
from worker.rl.learner import ObsLayout, Streams, build_learner
from worker.rl.nets import InputLayout, build_net
from worker.rl.rollout import Rollout


@pytest.mark.parametrize(
    ("image", "kind", "width", "parameters"),
    [
        # of Mnih et al. 2015: 4 x 32 x 8 x 8 + 32, 32 x 64 x 4 x 4 + 64, 64 x 64 x 3 x 3 + 64, 3136 x 512 + 512
        ((4, 84, 84), "auto", 512, 8_224 + 32_832 + 36_928 + 1_606_144),
        ((4, 10, 10), "auto", 128, 4 * 16 * 9 + 16 + 16 * 32 * 9 + 32 + 32 * 36 * 128 + 128),
        ((1, 36, 36), "nature", 512, 64 * 32 + 32 + 32_832 + 36_928 + 64 * 512 + 512),
        ((2, 5, 6), "none", 60, 0),
    ],
)
def test_an_encoder_has_the_published_layers(
    image: tuple[int, int, int], kind: str, width: int, parameters: int
) -> None:
    encoder = Encoder(image, kind)
    assert encoder.width == width
    assert sum(p.numel() for p in encoder.parameters()) == parameters


@pytest.mark.parametrize(("image", "kind"), [((3, 35, 84), "nature"), ((3, 4, 4), "small"), ((3, 4, 4), "auto")])
def test_an_image_that_is_too_small_is_refused(image: tuple[int, int, int], kind: str) -> None:
    with pytest.raises(ValueError, match=r"net.encoder=.* cannot read an image of .* use none"):
        Encoder(image, kind)


def test_bytes_are_divided_by_255_once_and_images_stand_in_their_order() -> None:
    encoders = Encoders([(1, 5, 5), (1, 2, 2)], "none")
    pixels = torch.arange(29, dtype=torch.uint8).expand(3, 2, 29)
    assert torch.equal(encoders(pixels), pixels.float() / 255)


def test_truncation_bootstraps_the_image_before_the_reset() -> None:
    flags, heads = torch.zeros(0, dtype=torch.bool), (HeadSpec("action", 2),)
    layout = ObsLayout(InputLayout(0, 0, 0, 4, ((1, 5, 5),)), flags, flags)
    learner = build_learner(learner_config("mlp"), layout, heads, Streams(7), num_envs=2, device=CPU)
    rng, masks, cut = torch.Generator().manual_seed(3), full_masks(heads, 2), torch.tensor([False, True])

    def shown() -> Observation:
        pixels = torch.randint(0, 256, (2, 25), generator=rng, dtype=torch.uint8)
        return Observation(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.int64), pixels)

    rollout, final, last = Rollout(2, learner.heads, None), shown(), shown()
    rollout.begin(shown(), masks, ())
    for t in range(2):
        rollout.act(learner.net, t, torch.zeros(2, 1), None)
        view, ended = (shown(), cut) if t == 0 else (last, ~cut & cut)
        true = final if t == 0 else None
        rollout.see(
            t,
            Seen(
                observation=view,
                masks=masks,
                terminated=~cut & cut,
                truncated=ended,
                valid=cut | ~cut,
                final_observation=true,
            ),
        )
    with torch.no_grad():
        after = next_values(learner, rollout, torch.zeros(2, 2))
        expected = learner.net.step_values(final.features, final.ids, (), final.pixels)[1]
        end = learner.net.step_values(last.features, last.ids, (), last.pixels)
    torch.testing.assert_close(after[0, 1], expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(after[1], end, atol=1e-6, rtol=0)


@pytest.mark.parametrize("body", ["mlp", "lstm"])
def test_a_step_and_a_sequence_see_the_same_and_initial_weights_are_orthogonal(body: str) -> None:
    layout = InputLayout(3, 0, 0, 4, ((2, 12, 12),))
    heads = Heads.build((HeadSpec("action", 4),), CPU)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        return generator(1, "policy_init", parameter=name).standard_normal(shape)

    net = build_net(
        Net.model_validate({"body": body, "hidden": 8, "lstm_hidden": 8}), layout, heads, draw, value_gain=1.0
    )
    kernel = dict(net.named_parameters())["embed.encoders.each.0.convolutions.0.weight"].detach().flatten(1)
    torch.testing.assert_close(kernel @ kernel.T, 2 * torch.eye(len(kernel)), atol=1e-5, rtol=0)
    rng = torch.Generator().manual_seed(2)
    features, ids = torch.randn(5, 3, 3, generator=rng), torch.zeros(5, 3, 0, dtype=torch.int64)
    pixels = torch.randint(0, 256, (5, 3, 288), generator=rng, dtype=torch.uint8)
    logits, values = net.sequence(features, ids, net.initial_state(3), (), pixels)
    state = net.initial_state(3)
    for t in range(5):
        value = net.step_values(features[t], ids[t], state, pixels[t])
        row, state = net.step(features[t], ids[t], state, pixels[t])
        torch.testing.assert_close(row, logits[t], atol=1e-5, rtol=0)
        torch.testing.assert_close(value, values[t], atol=1e-5, rtol=0)
    assert not torch.equal(net.sequence(features, ids, net.initial_state(3), (), 255 - pixels)[0], logits)
