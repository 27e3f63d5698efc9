"""What the operations compute with."""

from dataclasses import dataclass

from pqkeep_keyservice.slhdsa_process import SlhDsaProcesses
from pqkeep_keyservice.storage.material import KeyMaterial
from pqkeep_keyservice.workers import Threads


@dataclass(frozen=True, slots=True)
class Resources:
    """Usable keys, and the places where slow work runs."""

    material: KeyMaterial
    threads: Threads
    slh_dsa: SlhDsaProcesses
