"""A whole session on the design page: saved, opened again, dropped, and kept over a reload."""

import json

import pytest
from playwright.sync_api import expect
from support.design.page import COSINE, PEAK, STABLE, STAGED, curve_of_json, wait_until_settled

pytestmark = pytest.mark.slow

DROP = """text => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([text], "dropped.json"));
    const drop = new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
    document.body.dispatchEvent(drop);
}"""


def names(page):
    wait_until_settled(page)
    return [field.input_value() for field in page.get_by_role("textbox", name="Name of").all()]


def peak_field(page):
    return page.get_by_role("textbox", name="Peak learning rate")


def test_saved_page_is_opened_again(page, tmp_path):
    peak_field(page).fill("0.0125")
    name = page.get_by_role("textbox", name="Name of Stages")
    name.fill("Three stages")
    name.press("Enter")
    page.get_by_label("Warmup steps").fill("20000")  # not valid: saved as it was
    wait_until_settled(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    expected = [("Cosine", PEAK, COSINE), ("Three stages", PEAK, STAGED), ("Stable", 0.0125, STABLE)]
    assert json.loads(path.read_text()) == {
        "curves": [{"name": name, "peak": peak, "curve": curve.to_dict()} for name, peak, curve in expected]
    }
    page.get_by_role("button", name="Remove Cosine").click()
    page.get_by_role("button", name="Open…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("or choose a file").set_input_files(path)
    expect(dialog.get_by_role("textbox")).not_to_have_value("")
    dialog.get_by_role("button", name="Open").click()
    expect(dialog).to_be_hidden()
    for _ in range(2):
        assert names(page) == [name for name, *_ in expected]
        for name, peak, curve in expected:
            page.get_by_role("radio", name=f"Edit {name}").check()
            assert curve_of_json(page) == curve
            expect(peak_field(page)).to_have_value(str(peak))
        page.get_by_role("button", name="Undo").click()
        assert names(page) == ["Three stages", "Stable"]
        page.reload()
        wait_until_settled(page)
        page.get_by_role("button", name="Redo").click()


def test_dropped_files_open_their_dialog(page):
    curve, saved = STAGED.cooldown(3_000, 500), {"name": "Only", "peak": 0.5, "curve": STABLE.to_dict()}
    dialog = page.get_by_role("dialog")
    for content, expected in (
        (curve.to_dict(), ["Cosine", "Stages", "Stable", "dropped"]),
        ({"curves": [saved]}, ["Only"]),
    ):
        page.evaluate(DROP, json.dumps(content))
        expect(dialog.get_by_role("textbox")).not_to_have_value("")
        dialog.get_by_role("button", name="Open").click()
        expect(dialog).to_be_hidden()
        assert names(page) == expected
    assert curve_of_json(page) == STABLE
    page.evaluate(DROP, "step,loss\n1,2\n")
    expect(dialog).to_contain_text("Open a log")


def test_reload_keeps_undo_and_redo(page):
    page.get_by_label("Warmup steps").fill("700")
    changed = curve_of_json(page)
    for button, curve in (("Undo", STABLE), ("Redo", changed)) * 2:
        page.reload()
        wait_until_settled(page)
        page.get_by_role("button", name=button).click()
        assert curve_of_json(page) == curve
