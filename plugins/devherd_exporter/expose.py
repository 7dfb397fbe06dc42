"""Writes samples in the formats Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.registry import Collector

from devherd_exporter.catalog import CATALOG
from devherd_exporter.catalog import Metric as Definition
from devherd_exporter.series import Histogram, Labels, Series, Value


class _Samples(Collector):
    """The samples as the client library wants them."""

    def __init__(self, series: Series) -> None:
        self._series = series

    def collect(self) -> Iterator[Metric]:
        """Families in the catalog's order."""
        for definition in CATALOG:
            family = self._series.families.get(definition.name)
            if family:
                yield _family(definition, family)


def text(series: Series) -> bytes:
    """The classic text format, as a textfile has it."""
    return generate_latest(_Samples(series))


def answer(series: Series, accept: str) -> tuple[bytes, str]:
    """The format a client asked for, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(_Samples(series)), content_type


PLAIN = CONTENT_TYPE_PLAIN_0_0_4


def _family(definition: Definition, family: dict[Labels, Value]) -> Metric:
    name, about, labels = definition.name, definition.help, list(definition.labels)
    if definition.kind == "histogram":
        histogram = HistogramMetricFamily(name, about, labels=labels)
        for key, value in sorted(family.items()):
            assert isinstance(value, Histogram)
            buckets = [(str(bound), count) for bound, count in value.buckets] + [("+Inf", value.total)]
            histogram.add_metric([_clean(label) for label in key], buckets, value.seconds)
        return histogram
    kind = CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily
    made: CounterMetricFamily | GaugeMetricFamily = kind(name, about, labels=labels)
    for key, value in sorted(family.items()):
        assert isinstance(value, float)
        made.add_metric([_clean(label) for label in key], value)
    return made


def _clean(label: str) -> str:
    """Labels are UTF-8: bytes of odd file names, which arrive as lone surrogates, are not."""
    return label.encode("utf-8", "backslashreplace").decode()
