"""Load of agents: sessions of recorded shape, replayed by several clients at once against a model or a server."""

from dflash.evaluation.traces.goodput import Goodput
from dflash.evaluation.traces.in_process import InProcess
from dflash.evaluation.traces.report import TraceReport
from dflash.evaluation.traces.run import TraceLimits, replay_traces
from dflash.evaluation.traces.server_url import ServerURL
from dflash.evaluation.traces.trace_file import AgentTrace, load_traces

__all__ = ["AgentTrace", "Goodput", "InProcess", "ServerURL", "TraceLimits", "TraceReport", "load_traces", "replay_traces"]
