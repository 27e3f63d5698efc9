"""What the operations compute with."""

from dataclasses import dataclass

from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.slhdsa_process import SlhDsaProcesses
from pqkeep_keyservice.live.workers import Threads


@dataclass(frozen=True, slots=True)
class Resources:
    """Usable keys, and the places where slow work runs."""

    material: KeyMaterial
    threads: Threads
    slh_dsa: SlhDsaProcesses
