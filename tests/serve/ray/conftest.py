"""A local Ray with two replicas of the demo, which can be made to fail."""

import socket
import sys
import warnings
from types import SimpleNamespace

import httpx
import pytest
from hang_guard import GUARD, wait_until

OPTIONS = "--device cpu --threads 1 --context 1024 --sequences 4 --prefix-cache-mib 0"


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


@pytest.fixture(scope="session")
def deployments():
    """The module of the deployments; skips without Ray, whose imports warn of what it uses itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'dflash-gguf[ray]'")
        from dflash.serve.ray import deployments

        return deployments


@pytest.fixture(scope="session")
def local_ray(deployments):
    """Ray Serve in processes of this machine; yields the URL of its proxy."""
    import ray
    from ray import serve

    port = free_port()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        serve.start(http_options={"port": port})
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()
        ray.shutdown()


@pytest.fixture(scope="session")
def cluster(local_ray, deployments):
    """Two replicas; `ready` waits for them, and `ask` sends a call to one of them past the ingress."""
    import ray
    from ray import serve

    from dflash.serve.routing.call import RoutedCall, plain_scope, tag_of

    class Breakable(deployments.ModelReplica):
        """A replica whose engine fails on a call of ``/break``."""

        async def __call__(self, call):
            if call.scope["path"] == "/break":
                self._backend.engine_thread.error = RuntimeError("broken by a test")
            async for piece in super().__call__(call):
                yield piece

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deployments, "ModelReplica", Breakable)
        application = deployments.app({"replicas": 2, "num_gpus": 0, "options": OPTIONS})
    serve.run(application)
    handle = serve.get_deployment_handle("Model", "default").options(stream=True)

    def actors():
        return [each for each in ray.util.list_named_actors(all_namespaces=True) if "#Model#" in each["name"]]

    def ask(path, name=None):
        scope = plain_scope({"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""})
        pieces = list(handle.remote(RoutedCall(scope, owner=None if name is None else tag_of(name))))
        return pieces[0].replica, b"".join(message.get("body", b"") for piece in pieces for message in piece.messages)

    def kill(name):
        (actor,) = [each for each in actors() if each["name"].endswith(name)]
        ray.kill(ray.get_actor(**actor))

    def names():
        return sorted(each["name"].rpartition("#")[2] for each in actors())

    def ready():
        """Wait until two replicas answer; return their names. A name is there before its replica has started."""
        wait_until(lambda: len(names()) == 2 and all(ask("/health", name)[0] == name for name in names()))
        return names()

    return SimpleNamespace(url=local_ray, ready=ready, names=names, ask=ask, kill=kill, tag_of=tag_of)


@pytest.fixture
def ray_http(cluster):
    with httpx.Client(base_url=cluster.url, timeout=GUARD) as http:
        yield http
