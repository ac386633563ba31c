"""The compiler's functions."""

from emulator import build
from emulator.ptx import UnknownPTX


class NVRTCError(RuntimeError):
    pass


class _Program:
    def __init__(self, text, name):
        self.text, self.name, self.log, self.code = text, name, "", b""


def getVersion():
    return 13, 0, build.version()


def getSupportedArchs():
    return 80, 86, 89, 90, 100, 120


def createProgram(text, name, headers, names):
    return _Program(text, name)


def compileProgram(program, options):
    try:
        program.code = build.kernel(program.text, program.name, options)
    except (build.CompileError, UnknownPTX) as error:
        program.log = str(error)
        raise NVRTCError("NVRTC_ERROR_COMPILATION (6)") from error


def getCUBIN(program):
    return program.code


getPTX = getCUBIN


def getProgramLog(program):
    return program.log


def destroyProgram(program):
    pass
