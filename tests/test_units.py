"""Sizes, durations and money: what people type, what is printed, what is refused."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftop import units
from rooftop.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("4M", 4e6), ("15T", 15e12), ("2.5k", 2500), ("1e9", 1e9), ("1_000", 1000), ("1,000", 1000), ("4Mi", 4 * 2**20),
     ("3B", 3e9), ("3g", 3e9), (".5k", 500), (" 7 ", 7), ("0", 0)],
)  # fmt: skip
def test_counts(text, value):
    assert units.parse_count(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("512", 512), ("34MB", 34e6), ("16GiB", 16 * 2**30), ("1.5TB", 1.5e12), ("16 GB", 16e9), ("7b", 7), ("2KiB", 2048), ("1kB", 1000)],
)  # fmt: skip
def test_bytes(text, value):
    assert units.parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("90d", 90 * 86400), ("3h", 10800), ("15ms", 0.015), ("2us", 2e-6), ("2µs", 2e-6), ("30", 30), ("5min", 300), ("1y", 365.25 * 86400)],
)  # fmt: skip
def test_durations(text, value):
    assert units.parse_seconds(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(("text", "value"), [("2M", 2e6), ("$1500", 1500), ("1.2", 1.2), ("7 USD", 7)])
def test_money(text, value):
    assert units.parse_usd(text) == value


@pytest.mark.parametrize("text", ["1.2", "1.2 $/h", "1.2 USD/h", "1.2 usd per hour", "$1.2/hour"])
def test_prices_per_hour(text):
    assert units.parse_usd_per_hour(text) == 1.2


def test_sizes_by_name():
    assert units.parse_sizes("I=8192,J=8k") == {"I": 8192, "J": 8000}
    assert units.parse_sizes(" X = 4 , Y_2=1 ,") == {"X": 4, "Y_2": 1}


@pytest.mark.parametrize(
    "text", ["", ",", "X", "X=", "X=0", "X=-1", "X=1.5", "X=4,X=4", "1X=4", "X=4;Y=5", "X=nan", "X=4" * 2000]
)
def test_sizes_that_are_refused(text):
    with pytest.raises(InputError) as refused:
        units.parse_sizes(text, "--mesh")
    assert_one_sentence(refused.value)


PARSERS = (
    units.parse_count,
    units.parse_integer,
    units.parse_bytes,
    units.parse_seconds,
    units.parse_usd,
    units.parse_usd_per_hour,
)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text",
    ["", " ", "nan", "inf", "-inf", "-1", "-4M", "4 Gazillion", "four", "1e400", "1e31", "--", "1.2.3", "e9", "k", "0x10", "4M4",
     "9" * 65, "1" + " " * 100, "٣", "4\n5", "\x00", "1/2", "NaNM"],
)  # fmt: skip
def test_refusals_name_the_field_and_say_what_to_write(parse, text):
    with pytest.raises(InputError) as refused:
        parse(text, "--batch")
    assert refused.value.field == "--batch"
    assert_one_sentence(refused.value)


def test_a_fraction_is_not_a_whole_number():
    assert units.parse_integer("2.5k") == 2500
    with pytest.raises(InputError, match="whole number"):
        units.parse_integer("2.5")


def assert_one_sentence(error):
    assert "\n" not in error.message
    assert "write" in error.message or "give" in error.message
    assert len(error.message) < 240


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text):
    for parse in (*PARSERS, units.parse_sizes):
        try:
            value = parse(text)
        except InputError as error:
            assert "\n" not in error.message
        else:
            values = value.values() if isinstance(value, dict) else [value]
            assert all(math.isfinite(v) and v >= 0 for v in values)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 9e14))
def test_what_is_printed_reads_back(value):
    if value >= 1:
        assert units.parse_count(units.format_count(value)) == pytest.approx(value, rel=6e-3)
        assert units.parse_bytes(units.format_bytes(value)) == pytest.approx(value, rel=6e-3)
    assert units.parse_seconds(units.format_seconds(value)) == pytest.approx(value, rel=6e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**15))
def test_whole_numbers_read_back_exactly(value):
    assert units.parse_integer(str(value)) == value
    assert units.parse_integer(f"{value:,}") == value


@pytest.mark.parametrize(
    ("shown", "text"),
    [(units.format_count(70553706496), "70.6B"), (units.format_bytes(96e9), "96.0 GB"), (units.format_seconds(0.679), "679 ms"),
     (units.format_seconds(188e-6), "188 us"), (units.format_seconds(0), "0 s"), (units.format_flops_rate(459e12), "459 TFLOP/s"),
     (units.format_bandwidth(2.77e12), "2.77 TB/s"), (units.format_usd(26541664), "26.5M USD"), (units.format_count(999.9), "1.00k"),
     (units.format_flops(4.8e11), "480 GFLOPs"), (units.format_flops(6.3e24), "6.3e+24 FLOPs"), (units.format_seconds(2540160), "29.4 d")],
)  # fmt: skip
def test_three_digits_are_shown(shown, text):
    assert shown == text


@pytest.mark.parametrize(("name", "canonical", "size"), [
    ("bf16", "bf16", 2), ("bfloat16", "bf16", 2), ("torch.float32", "fp32", 4), ("F8E4M3", "fp8", 1), ("int4", "int4", 0.5), ("half", "fp16", 2),
])  # fmt: skip
def test_dtypes(name, canonical, size):
    assert units.dtype(name) == canonical
    assert units.dtype_bytes(name) == size


@pytest.mark.parametrize("name", ["bf61", "", "fp7", "x" * 1000])
def test_unknown_dtypes_are_refused(name):
    with pytest.raises(InputError, match="unknown dtype"):
        units.dtype(name)
