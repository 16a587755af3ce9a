"""The demonstration network of `junctor demo`: a pumping station with wear, faults, sensors and consequences.

Invented for this project; no plant was measured. States of a variable are ranked from good to bad. A variable with
n + 1 states has a binomial distribution over them: n trials of probability `base` plus, for each parent, its weight
times how bad the parent is (0 for its first state, 1 for its last).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple

from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network


class Ranked(NamedTuple):
    """A variable with states from good to bad; `weights` say how much each parent adds to the probability `base`."""

    states: str
    base: float
    weights: Mapping[str, float] = {}


# Hidden conditions, wear and faults. Bases are small: a healthy station is the normal case.
CAUSES = {
    "Weather": Ranked("mild warm hot", 0.35),
    "Crew": Ranked("experienced mixed new", 0.3),
    "Maintenance": Ranked("recent due overdue", 0.2, {"Crew": 0.15}),
    "PowerSupply": Ranked("clean dips poor", 0.08, {"Weather": 0.1}),
    "RawWater": Ranked("clear gritty muddy", 0.2, {"Weather": 0.1}),
    "StrainerClog": Ranked("clear partial blocked", 0.05, {"RawWater": 0.45, "Maintenance": 0.25}),
    "FilterClog": Ranked("clear light heavy blocked", 0.05, {"RawWater": 0.4, "Maintenance": 0.35}),
    "Lubricant": Ranked("fresh aged degraded", 0.08, {"Maintenance": 0.6, "Weather": 0.1}),
    "Alignment": Ranked("good off", 0.04, {"Crew": 0.2, "Maintenance": 0.1}),
    "BearingWear": Ranked("none slight worn failed", 0.03, {"Lubricant": 0.45, "Alignment": 0.2}),
    "SealWear": Ranked("none slight leaking", 0.04, {"RawWater": 0.25, "Alignment": 0.2, "Maintenance": 0.2}),
    "ImpellerErosion": Ranked("none slight heavy", 0.03, {"RawWater": 0.45, "Cavitation": 0.3}),
    "ValveStuck": Ranked("free sticky stuck", 0.03, {"Maintenance": 0.25, "RawWater": 0.1}),
    "ControllerFault": Ranked("no yes", 0.01, {"PowerSupply": 0.15}),
    "MotorWinding": Ranked("sound aged damaged", 0.04, {"PowerSupply": 0.3, "Weather": 0.1}),
}
# What the causes do to the process. No variable has more than three parents, so that tables stay small.
PROCESS = {
    "SuctionPressure": Ranked("normal low very_low", 0.02, {"StrainerClog": 0.8}),
    "Cavitation": Ranked("none mild severe", 0.02, {"SuctionPressure": 0.7, "ValveStuck": 0.15}),
    "CoolingFlow": Ranked("normal reduced lost", 0.02, {"FilterClog": 0.6, "ValveStuck": 0.25}),
    "BearingHeat": Ranked("normal warm hot", 0.03, {"BearingWear": 0.5, "Lubricant": 0.2, "CoolingFlow": 0.2}),
    "MotorHeat": Ranked("normal warm hot", 0.03, {"MotorWinding": 0.45, "CoolingFlow": 0.25, "Weather": 0.15}),
    "Vibration": Ranked("low raised high", 0.03, {"BearingWear": 0.4, "Cavitation": 0.3, "Alignment": 0.2}),
    "Leak": Ranked("none drip stream", 0.01, {"SealWear": 0.75, "Vibration": 0.1}),
    "Flow": Ranked("nominal reduced low none", 0.02, {"ImpellerErosion": 0.3, "Cavitation": 0.3, "ValveStuck": 0.25}),
    "DischargePressure": Ranked("normal low very_low", 0.02, {"Flow": 0.7, "Leak": 0.2}),
    "Efficiency": Ranked("good fair bad", 0.05, {"Flow": 0.45, "MotorHeat": 0.2, "ImpellerErosion": 0.2}),
    "Trip": Ranked("no yes", 0.002, {"BearingHeat": 0.3, "MotorHeat": 0.3, "ControllerFault": 0.35}),
    "Supply": Ranked("full reduced cut", 0.01, {"Trip": 0.5, "DischargePressure": 0.45}),
}
# One noisy reading of one or two process variables each; these are what evidence rows observe.
SENSORS = {
    "ThermometerOutside": Ranked("low middle high", 0.05, {"Weather": 0.9}),
    "TurbidityMeter": Ranked("low middle high", 0.04, {"RawWater": 0.9}),
    "SuctionGauge": Ranked("normal low alarm", 0.03, {"SuctionPressure": 0.92}),
    "FilterGauge": Ranked("normal raised alarm", 0.03, {"FilterClog": 0.9}),
    "CoolingMeter": Ranked("normal low alarm", 0.03, {"CoolingFlow": 0.92}),
    "BearingSensor": Ranked("normal high alarm", 0.02, {"BearingHeat": 0.9, "Weather": 0.05}),
    "MotorSensor": Ranked("normal high alarm", 0.02, {"MotorHeat": 0.93}),
    "CurrentMeter": Ranked("normal high", 0.03, {"MotorHeat": 0.5, "PowerSupply": 0.3}),
    "Accelerometer": Ranked("quiet raised alarm", 0.02, {"Vibration": 0.92}),
    "Microphone": Ranked("quiet rattling", 0.03, {"Cavitation": 0.7, "BearingWear": 0.2}),
    "LeakDetector": Ranked("dry wet", 0.01, {"Leak": 0.95}),
    "FlowMeter": Ranked("normal low alarm", 0.02, {"Flow": 0.93}),
    "DischargeGauge": Ranked("normal low alarm", 0.02, {"DischargePressure": 0.93}),
    "OilSample": Ranked("clean dark metal", 0.03, {"Lubricant": 0.5, "BearingWear": 0.4}),
}


def plant() -> Network:
    """Return the pumping station: a Bayesian network of 41 variables with 2 to 4 states each."""
    ranked = {**CAUSES, **PROCESS, **SENSORS}
    place = Place("plant")
    variables = [DraftVariable(name, child.states.split(), place) for name, child in ranked.items()]
    tables = [DraftTable((*child.weights, name), _table(child, ranked), place) for name, child in ranked.items()]
    return build_network("plant", "bayes", variables, tables)


def _table(child: Ranked, ranked: Mapping[str, Ranked]) -> list[list[float]]:
    """Return one row for each configuration of the parents, the last parent fastest."""
    worst = {name: _worst(ranked[name]) for name in child.weights}
    return [
        _binomial(_worst(child), child.base + sum(child.weights[name] * bad / worst[name] for name, bad in at))
        for at in itertools.product(*([(name, bad) for bad in range(last + 1)] for name, last in worst.items()))
    ]


def _worst(ranked: Ranked) -> int:
    """Return the index of the worst state."""
    # n + 1 names have n spaces between them.
    return ranked.states.count(" ")


def _binomial(trials: int, chance: float) -> list[float]:
    return [math.comb(trials, k) * chance**k * (1.0 - chance) ** (trials - k) for k in range(trials + 1)]
