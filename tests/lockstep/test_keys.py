"""Key derivation against the stated vectors (training.md 3.7)."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.keys import derive, generator, generators, replicate_seed


def test_replicate_seeds_match_the_vectors() -> None:
    assert [replicate_seed(42, r) for r in range(3)] == [
        9150231957862659777,
        4131223972967127869,
        8352233024093722472,
    ]


def test_host_init_key_matches_the_vector() -> None:
    assert derive(replicate_seed(42, 0), "host_init", env=0, episode=0) == 2848188122223590940


def test_unknown_purpose_is_refused_and_prefixes_are_known() -> None:
    with pytest.raises(ValueError, match="unknown purpose 'hots_init'"):
        derive(1, "hots_init")
    assert derive(1, "eval/env_reset", episode=0) != derive(1, "env_reset", episode=0)


def test_one_generator_for_many_keys_draws_what_one_each_draws() -> None:
    keys = [{"env": env, "episode": 3} for env in range(4)]
    for draw, key in zip(generators(7, "action_noise", keys), keys, strict=True):
        own = generator(7, "action_noise", **key)
        # an odd number of halves of a word stays behind, and must not reach the next key
        assert draw.random(5, dtype=np.float32).tolist() == own.random(5, dtype=np.float32).tolist()
        assert draw.standard_normal(3).tolist() == own.standard_normal(3).tolist()


def test_generators_of_equal_keys_agree_and_of_others_do_not() -> None:
    a, b = (generator(1, "action_noise", env=0, episode=0).random(8) for _ in range(2))
    c = generator(1, "action_noise", env=1, episode=0).random(8)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_global_generator_states_are_untouched() -> None:
    before = repr(np.random.get_state())
    generator(1, "warmup").random(100)
    assert before == repr(np.random.get_state())
