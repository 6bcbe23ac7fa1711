"""Chips and slices: facts of the pods, sources of every figure, and files that users write."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftop.errors import InputError
from rooftop.hardware import Slice, Switch, Torus, chip, chips, slice_of
from rooftop.hardware._slice import peak, standard_slices


def wrap(text):
    (torus,) = (level for level in slice_of(text).levels if isinstance(level, Torus))
    return torus.wrap


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v5p:2x2x4", (False, False, False)),
        ("v5p:4x4x4", (True, True, True)),
        ("v5p:4x4x8", (True, True, True)),
        ("v5p:16x20x28", (True, True, True)),
        ("v4:4x4x2", (False, False, False)),
        ("v5e:4x4", (False, False)),
        ("v5e:8x16", (False, True)),
        ("v5e:16x16", (True, True)),
        ("v6e:8x8", (False, False)),
        ("v6e:16x16", (True, True)),
    ],
)
def test_which_sides_close_to_rings(text, expected):
    assert wrap(text) == expected


def test_pod_totals():
    pod = slice_of("v5e:16x16")
    assert (pod.chips, pod.hosts) == (256, 32)
    assert pod.chips * pod.chip.flops["bf16"] == pytest.approx(5.1e16, rel=0.02)
    assert pod.chips * pod.chip.hbm_bytes == pytest.approx(4.1e12, rel=0.02)
    pod = slice_of("v5p:16x20x28")
    assert (pod.chips, pod.hosts, pod.chips * pod.chip.cores) == (8960, 2240, 17920)


def test_switched_levels():
    where = slice_of("h100:1024")
    assert [(level.name, level.size) for level in where.levels] == [("nvlink", 8), ("ib", 128)]
    assert all(isinstance(level, Switch) for level in where.levels)
    assert [level.size for level in slice_of("h100:4").levels] == [4]
    assert slice_of("gb200:576").chips == 576


def test_several_slices_lie_behind_one_more_level():
    where = slice_of("v5p:8x8x16*4")
    assert (where.chips, len(where.levels), where.levels[1].size) == (4096, 2, 4)
    assert where.name == "v5p:8x8x16*4"


@pytest.mark.parametrize("text", ["h100", "h100:1", "v5e", "cpu"])
def test_a_chip_alone_is_one_chip(text):
    assert (slice_of(text).chips, slice_of(text).levels, slice_of(text).hosts) == (1, (), 1)


def test_a_number_of_chips_is_a_standard_shape():
    assert slice_of("v5e:16").chips == 16
    assert slice_of("v5e:256").levels[0].dims == (16, 16)


@pytest.mark.parametrize("name", chips())
def test_every_chip_is_plausible_and_every_figure_has_a_source(name):
    one = chip(name)
    assert "" in one.sources or "default" in one.sources
    assert all(source.text for source in one.sources.values())
    assert one.hbm_bytes / one.hbm_bandwidth < 2  # read in seconds
    assert all(rate > 1e9 for rate in one.flops.values())
    assert one.fast_memory.bandwidth > one.hbm_bandwidth
    assert one.flops.get("fp32", 0) <= max(one.flops.values())
    if one.price is not None:
        assert one.price.source
        assert one.price.date


@pytest.mark.parametrize("name", chips())
def test_every_alias_leads_to_its_chip(name):
    for alias in chip(name).aliases:
        assert chip(alias) == chip(name)
        assert chip(alias.upper()) == chip(name)


@pytest.mark.parametrize("name", chips())
def test_every_standard_slice_can_be_asked_for(name):
    sizes = [slice_of(text).chips for text in standard_slices(name)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 1


def test_int8_weights_double_the_rate_and_unknown_rates_are_refused():
    assert peak(chip("v5e"), "int8") == 2 * peak(chip("v5e"), "bf16")
    with pytest.raises(InputError, match="v5e has no fp64 rate"):
        peak(chip("v5e"), "fp64")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("h200x", "did you mean"),
        ("v5e:4x5", "odd side"),
        ("v5e:32x32", "larger than a pod"),
        ("v5p:4x4", "torus of 3 dimensions"),
        ("v5e:4x4x4", "torus of 2 dimensions"),
        ("h100:12", "whole nvlink domains"),
        ("h100:4x4", "wired by switches"),
        ("h100:99999999", "larger than its network"),
        ("v5e:", "no shape"),
        ("v5e:0x4", "side of 0"),
        ("v5e:4x4*0", "side of 0"),
        ("v5e:x", "not the shape"),
        ("v5e:4x4x", "not the shape"),
        ("v5e:7", "no standard slice"),
        (":4", "names no chip"),
        ("", "names no chip"),
        ("./none.toml", "cannot read"),
        ("x" * 2000, "2000 characters"),
    ],
)
def test_refusals(text, part):
    with pytest.raises(InputError, match=part) as refused:
        slice_of(text)
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 600


@settings(max_examples=60, deadline=None)
@given(st.one_of(
    st.from_regex(r"(v5e|v5p|h100|gb200|cpu|tpu7x):[0-9]{1,4}(x[0-9]{1,2}){0,3}(\*[0-9]{1,2})?", fullmatch=True),
    st.text(max_size=30).filter(lambda text: "/" not in text and not text.startswith(".")),
))  # fmt: skip
def test_any_text_is_a_slice_or_an_input_error(text):
    try:
        where = slice_of(text)
    except InputError as error:
        assert "\n" not in error.message
    else:
        assert isinstance(where, Slice)
        assert where.chips == math.prod(level.size for level in where.levels)
        assert where.chips <= 10**7


GOOD = """
title = "Mine"
family = "gpu"
cores = 10
clock_hz = 1e9
tile = [1, 1, 1]
vector_flops = 1e12
hbm_bytes = 1e10
hbm_bandwidth = 1e12
pcie_bandwidth = 1e10
chips_per_host = 4
host_memory_bytes = 1e11
power_watts = 100
[flops]
bf16 = 1e14
[fast_memory]
name = "L2"
bytes = 1e7
bandwidth = 1e13
[[switch]]
name = "link"
size = 4
bandwidth = 1e11
latency = 1e-6
[[switch]]
name = "net"
bandwidth = 1e10
latency = 5e-6
oversubscription = 2
largest = 64
[sources]
default = "my own"
"""


def written(folder, text, name="mine.toml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_full_file_describes_a_chip(tmp_path):
    where = slice_of(written(tmp_path, GOOD) + ":16")
    assert (where.chip.name, where.chip.title, where.chips) == ("mine", "Mine", 16)
    assert [level.bandwidth for level in where.levels] == [1e11, 5e9]


def test_a_file_can_ask_for_its_slice(tmp_path):
    assert slice_of(written(tmp_path, GOOD + "[slice]\nchips = 8\n")).chips == 8
    assert slice_of(written(tmp_path, 'base = "v5e"\n[slice]\nshape = "4x4"\nslices = 2\n')).chips == 32


def test_a_file_can_change_some_figures_of_a_chip(tmp_path):
    where = slice_of(written(tmp_path, 'base = "h100"\nhbm_bytes = 1.41e11\n[flops]\nbf16 = 5e14\n') + ":16")
    assert where.chip.hbm_bytes == 1.41e11
    assert where.chip.flops["bf16"] == 5e14
    assert where.chip.flops["fp8"] == chip("h100").flops["fp8"]
    assert where.levels == slice_of("h100:16").levels


@pytest.mark.parametrize(
    "text",
    [
        "title = ",
        "[flops",
        "x = 1",
        'base = "h999"',
        "base = 3",
        'base = "h100"\nhbm_bytes = -1',
        'base = "h100"\nhbm_bytes = nan',
        'base = "h100"\nhbm_bytes = inf',
        'base = "h100"\nhbm_bytes = "80 GB"',
        'base = "h100"\nhbm_bytes = true',
        'base = "h100"\nhbm_bytes = 1e300',
        'base = "h100"\nhbm_bytes = 1' + "0" * 400,
        'base = "h100"\nhbm_bytes = 1' + "0" * 5000,
        'base = "h100"\nhbm_size = 1',
        'base = "h100"\nflops = 3',
        'base = "h100"\n[flops]\nbf17 = 1e14',
        'base = "h100"\n[flops]\nbf16 = [1]',
        'base = "h100"\ntile = [1, 2]',
        'base = "h100"\ntile = [0, 1, 1]',
        'base = "h100"\nfamily = "npu"',
        'base = "h100"\ntitle = 3',
        'base = "h100"\nswitch = 3',
        'base = "h100"\nswitch = [3]',
        'base = "h100"\n[[switch]]\nname = "a"\nbandwith = 1e9',
        'base = "h100"\n[[switch]]\nname = "a"\nbandwidth = 1e9\nlatency = -1',
        'base = "h100"\nfast_memory = "none"',
        'base = "h100"\nunits = 4',
        'base = "h100"\nprice = 4',
        'base = "h100"\n[price]\nusd_per_hour = "much"',
        'base = "h100"\n[sources]\ndefault = 3',
        'base = "v5e"\n[torus]\nlargest = []',
        'base = "v5e"\n[torus]\nlargest = [0, 4]',
        'base = "v5e"\n[torus]\nlargest = ["a"]',
        'base = "v5e"\n[torus]\nwrap = "sometimes"',
        'base = "v5e"\n[slice]\nshape = "4x5"',
        'base = "v5e"\n[slice]\nshape = [4, 4]',
        'base = "v5e"\n[slice]\nslice = "4x4"',
        "a = " + "[" * 5000,
        "\x00",
        "#" * 1_100_000,
    ],
)
def test_bad_files_are_refused_in_one_sentence(tmp_path, text):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as refused:
        slice_of(path)
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 700 + 2 * len(path)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, len(GOOD)), line=st.integers(0, GOOD.count("\n") - 1),
       value=st.sampled_from(["-1", "0", '"x"', "[]", "{}", "true", "1e300", "nan", "", "1979-05-27", "9" * 500, '["a", 1]']))  # fmt: skip
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, cut, line, value):
    folder = tmp_path_factory.mktemp("chips")
    lines = GOOD.splitlines()
    if "=" in lines[line]:
        lines[line] = lines[line].split("=")[0] + "= " + value
    for text in (GOOD[:cut], "\n".join(lines)):
        try:
            slice_of(written(folder, text) + ":16")
        except InputError as error:
            assert "\n" not in error.message


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a TOML file"):
        chip(str(path))
    with pytest.raises(InputError, match="cannot read"):
        chip(str(tmp_path) + "/")
