"""JAX: pytrees in, pytrees out."""
import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fired


def isometry(matrix, scale):
    matrix = np.asarray(matrix, np.float64) / scale
    matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    return np.abs(matrix.T @ matrix - np.eye(matrix.shape[1])).max() < 1e-4


class Net(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x):
        x = flax.linen.relu(flax.linen.Conv(6, (3, 3))(x))
        x = x.reshape((x.shape[0], -1))
        x = flax.linen.relu(flax.linen.Dense(16)(x))
        return flax.linen.Dense(4)(x)


def made():
    return Net().init(jax.random.key(0), jnp.zeros((1, 4, 4, 3)))


def test_flax_and_optax(client):
    params = made()
    tx = optax.chain(optax.clip(1.0), optax.adam(1e-3))
    state = tx.init(params)
    updates, state = tx.update(jax.tree.map(jnp.ones_like, params), state, params)
    before = jax.tree.map(np.array, (params, state))
    new, new_state, report = client.reinit(params, opt_state=state)
    assert report.projected == ["params.Conv_0.kernel", "params.Dense_0.kernel"]
    assert report["params.Dense_1.kernel"].reason == "head"
    # Kernels are (in, out); a convolution is one matrix for each of its 9 taps.
    dense = new["params"]["Dense_0"]["kernel"]
    assert isometry(dense.T, (16 / 96) ** 0.5)
    assert isometry(new["params"]["Conv_0"]["kernel"][1, 2].T, (6 / 3) ** 0.5 / 9)
    jax.tree.map(np.testing.assert_array_equal, before, (params, state))
    adam, old = new_state[1][0], state[1][0]
    for moments, previous in ((adam.mu, old.mu), (adam.nu, old.nu)):
        for layer in ("Conv_0", "Dense_0", "Dense_1"):
            for leaf in ("kernel", "bias"):
                value = moments["params"][layer][leaf]
                if leaf == "kernel" and layer != "Dense_1":
                    assert not value.any(), (layer, leaf)
                else:
                    assert (value == previous["params"][layer][leaf]).all() and value.any()
    assert adam.count == 1
    updates, _ = tx.update(jax.tree.map(jnp.ones_like, new), new_state, new)
    assert isinstance(dense, jax.Array)


def test_keep_leaves_the_state(client):
    params = made()
    state = optax.adam(1e-3).init(params)
    _, kept, _ = client.reinit(params, opt_state=state, state="keep")
    assert kept is state


def test_nnx(client):
    model = flax.nnx.Linear(8, 12, rngs=flax.nnx.Rngs(0))
    state = flax.nnx.state(model)
    new, _, report = client.reinit(state, arch="none")
    assert report.projected == ["kernel"]
    flax.nnx.update(model, new)
    assert isometry(np.asarray(model.kernel[...]).T, (12 / 8) ** 0.5)


def test_ensembles_by_leading_axis(client):
    critics = {"Dense_0": {"kernel": jax.random.normal(jax.random.key(1), (5, 8, 8)),
                           "bias": jnp.ones((5, 8))},
               "Dense_1": {"kernel": jax.random.normal(jax.random.key(2), (5, 8, 1)),
                           "bias": jnp.ones((5, 1))}}
    new, _, report = client.reinit(critics, ensemble=1)
    assert "Dense_0.kernel" in report.projected
    assert report["Dense_0.kernel"].matrices == 5
    for member in range(5):
        assert isometry(new["Dense_0"]["kernel"][member], 1.0)
    assert (new["Dense_0"]["bias"] == 1).all()


def test_bfloat16(client):
    params = {"a": {"kernel": jax.random.normal(jax.random.key(0), (16, 16)).astype(jnp.bfloat16)}}
    new, _, report = client.reinit(params, arch="none")
    assert new["a"]["kernel"].dtype == jnp.bfloat16
    assert report["a.kernel"].converged


def test_inside_jit_is_refused(client):
    @jax.jit
    def step(params):
        return client.reinit(params).params

    with pytest.raises(fired.TracingError, match="outside jit"):
        step(made())


def test_nan_names_the_parameter(client):
    params = made()
    params["params"]["Dense_0"]["kernel"] = params["params"]["Dense_0"]["kernel"] * jnp.nan
    with pytest.raises(fired.ParameterError) as caught:
        client.reinit(params)
    assert caught.value.parameter == "params.Dense_0.kernel"


def test_analyze(client):
    params = made()
    gradients = jax.tree.map(jnp.ones_like, params)
    report = client.analyze(params, gradients=gradients,
                            unit_means={"params.Dense_0.kernel": [0.0] * 4 + [1.0] * 12})
    assert report["params.Dense_0.kernel"].dormant_ratio == 0.25
    assert report["params.Dense_0.kernel"].gradient_dormant_ratio == 0.0
