"""Tests of text extraction from PDF, HTML and Office files with valid and damaged content."""

import base64
import contextlib
import itertools
import signal
import threading
import time
import zlib

import pypdfium2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.documents import extraction, office, tables
from relevance_gen.documents.extraction import Extracted, extract, format_of
from relevance_gen.documents.webpages import page_text
from tests.cli.documents import archive, docx, epub, odt, pdf, pptx, run, table, xlsx

SAMPLES = {
    "a.pdf": pdf("Apples are red", "Pears are green"),
    "a.docx": docx(run("Apples are red"), run("Pears")),
    "a.pptx": pptx("Apples", "Pears"),
    "a.xlsx": xlsx(Prices=[["apple", 1.5], ["pear", 2]], Stock=[["apple"]]),
    "a.odt": odt("<text:h>Apples</text:h><text:p>are red</text:p>"),
    "a.epub": epub(
        "<!DOCTYPE html><h1>Apples</h1>",
        "<title>x</title><p>are red",
        "<img/>",
        title="Fruit &amp; more",
    ),
    "a.html": b"<!DOCTYPE html><title>Apples</title><p>are red",
}


def read(name: str, content: bytes) -> Extracted:
    kind = format_of(name, content)
    assert kind is not None
    return extract(content, kind)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.pdf", [({"page": 1}, "Apples are red"), ({"page": 2}, "Pears are green")]),
        ("a.docx", [({}, "Apples are red\n\nPears")]),
        ("a.pptx", [({"slide": 1}, "Apples"), ({"slide": 2}, "Pears")]),
        (
            "a.xlsx",
            [({"sheet": "Prices"}, "| apple | 1.5 |\n| pear | 2 |"), ({"sheet": "Stock"}, "apple")],
        ),
        (
            "a.epub",
            [
                ({"chapter": 1, "title": "Fruit & more"}, "# Apples"),
                ({"chapter": 2, "title": "Fruit & more"}, "are red"),
            ],
        ),
        ("a.odt", [({}, "Apples\n\nare red")]),
        ("a.html", [({"title": "Apples"}, "are red")]),
    ],
)
def test_format_is_detected_from_content(
    name: str, parts: list[tuple[dict[str, object], str]]
) -> None:
    """Text and locations of each format are extracted, regardless of the file name."""
    names = [
        value for place, _ in parts for value in place.values() if isinstance(value, str)
    ]  # of sheets
    for called in (name, "-", "file", "a.txt"):
        assert read(called, SAMPLES[name]) == Extracted(
            parts,
            has_headings=name != "a.pdf",
            n_chars=sum(map(len, [*names, *(text for _, text in parts)])),
        )


def test_docx_special_elements() -> None:
    """Tabs and breaks are kept; settings, deleted text and compatibility copies are dropped."""
    paragraph = (
        '<w:pPr><w:tabs><w:tab w:pos="9"/></w:tabs></w:pPr>'
        + run("one")
        + "<w:r><w:tab/><w:br/></w:r><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>"
        + f"<Choice>{run('two')}</Choice><Fallback>{run('two')}</Fallback>"
    )
    assert read("a", docx(paragraph, "")).parts == [({}, "one\t\ntwo")]
    changed = "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
    text = f"{changed}<text:p>a<text:s/>b<text:tab/>c<text:line-break/>d</text:p>"
    assert read("a", odt(text)).parts == [({}, "a b\tc\nd")]


def test_office_headings_become_markdown() -> None:
    """A heading is written in Markdown syntax."""
    style = '<w:pPr><w:pStyle w:val="Heading2"/></w:pPr>'
    assert read("a", docx(style + run("Apples"), run("are red"))).parts == [
        ({}, "## Apples\n\nare red")
    ]
    heading = '<text:h text:outline-level="1">Apples</text:h><text:p>are red</text:p>'
    assert read("a", odt(heading)).parts == [({}, "# Apples\n\nare red")]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>Fish &amp; <b>ch</b>ips</p><p>Peas", "Fish & chips\n\nPeas"),
        ("<ul>\n  <li>one</li>\n  <li>two\nthree</li>\n</ul>", "- one\n- two three"),
        ("a<script>\nif (a<b) c()\n</script>b", "a\n\nb"),
        ("<style>p {}</style><template><p>x</p></template>y", "y"),
        ("<h2\nclass=a\n>A <i>title</i></h2>text", "## A title\n\ntext"),
        ("<pre>one\ntwo</pre>", "one\ntwo"),
        ("&lt;b&gt; &#8364; &nbsp;&bogus;", "<b> € &bogus;"),
        ("no markup at all < 5", "no markup at all < 5"),
        ("<header>Logo</header><nav><ul><li>Home</ul></nav><p>Text<footer>©</footer>", "Text"),
        ("<div role=navigation><div>Home</div>Away</div><input role=search>Text<aside>Ads</aside>", "Text"),
        ("<nav>Home<main><header><h1>Title</h1></header>Text</main><footer>©", "# Title\n\nText"),
        ("<nav>Home</nav><footer>©</footer>", "Home\n\n©"),
        (
            "<table><tr><th>Fish<th>Price<tr><td>Cod<td><p>9</p>€<tr><td>one</table>",
            "| Fish | Price |\n| --- | --- |\n| Fish: Cod | Price: 9 € |\none",
        ),
        ("<ul><li><p>One</p><li>Two<ol><li>Three</ol></ul>End", "- One\n- Two\n- Three\n\nEnd"),
        ("<table><tr><th>Name</th><td>Cod</td></tr></table>x<br>y", "| Name | Cod |\n\nx\ny"),
    ],
)  # fmt: skip
def test_html_text_has_blank_line_between_paragraphs(page: str, text: str) -> None:
    """The visible text of the page is extracted without navigation, paragraphs apart."""
    assert page_text(page) == ("", text)


_PIECES = [
    "<p>",
    "</p>",
    "<nav>",
    "</nav>",
    "<td>",
    "<tr>",
    "\n",
    "word",
    "<br/>",
    "<!--",
    "-->",
    "<main>",
    "&lt;",
]


@given(st.lists(st.sampled_from(_PIECES)))
def test_main_content_survives_invalid_markup(pieces: list[str]) -> None:
    """The text of the main element is extracted even if the markup around it is invalid."""
    _, text = page_text("".join(pieces) + "-->\n<main>MARK</main>")
    assert text.split("\n")[-1].removesuffix(" |").endswith("MARK")


@pytest.mark.parametrize("name", SAMPLES)
@given(data=st.data())
def test_damaged_document_raises_no_exception(name: str, data: st.DataObject) -> None:
    """A damaged document gives its readable text or a one-line warning, never an exception."""
    content = bytearray(SAMPLES[name])
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, len(content))) :]
    kind = format_of(name, bytes(content))
    if kind is not None:
        extracted = extract(bytes(content), kind)
        assert extracted.warning is None or (extracted.warning and "\n" not in extracted.warning)


@pytest.mark.parametrize(
    ("content", "warning"),
    [
        (b"%PDF-1.4\nnot really", "cannot be read (Pdf"),
        (pdf(""), "has no text, only pictures"),
        (docx("<w:r>"), "is damaged or encrypted (mismatched tag"),
        (
            archive({"word/document.xml": "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"}),
            "declares a document type",
        ),
        (archive({"ppt/presentation.xml": "<a/>"}), "is damaged or encrypted ("),
        (docx(run("red"))[:-30], "is damaged or encrypted ("),
    ],
)
def test_damaged_document_has_warning(content: bytes, warning: str) -> None:
    """Each kind of damage has a warning that can follow the file name."""
    kind = format_of("a", content) or "Office"
    assert (extract(content, kind).warning or "").startswith(warning)


OPEN = (
    "c-pm7J!lj`6ec1lBid^rli~zHvpYNg+;K&I4n-x$CECOkb2~F}!(}(_?Mco~1d)JXV__?nHns}Zc0v>@K~yAQ8o@T8vwJbOWJPS;U6y^{y!p"
    "QO-h5kY&$iB^DFSMrzr1-15cFZvT?LH>@Y-pj2cbz}gK~{1r<Ca?Xf}a~b)FNHau<i|26}C^V*0?FNd|ES1K?eXbRRB3;u1TM7w_c~0j?0ts"
    "7&>e6)<9gxk3kc^MkAx#V(dbJSHH2tN?gdjE>ZFvf;FScQX_~E(53Sbxc1Qq@m-=_p}mMXYqj`{mtzj*Fl__IO{_;s-Ue>lect0pH}p9M&K<"
    "Bx>*tCAOhaB>YGB#yI^{^OcsTz#KKA}mrcBq-GGGV>-{V>Y7I<$OCG#jKK<(J_QU5B_xiPS_07q{b6c;M?s%Vmo_KV(E<Ut(;O@?kGgD8$=c"
    "If4_UQS4ACma%kVLgT%u4M&yMO9Myt;Jrc>Uek-N&0xjvT$dwYW;^!()dghr1^~Zm+$^)vn~2bu5MalGe4{fgOnVRZ$>Zk&pzENX7%{mRnIT"
    "a|ZVoG8Jo;YUefQcE+p{92<ji$R!Uo?n<9nt+W-0D625hRw^tkGn$~T6vPA}(<)GkS?We}6*dgkm>a^lrGb<T2`8zA3XsH_hBOF7*AhbwF`N"
    "oT5F@_tVrH#XKJrERPuob11wKRw`1==Rlwt}k+{chRonj>(V^mf!6p$(=s(BdkDkiEJ5kUoG`AHnaB&%S&tdXTE>Y21SyoKnt$@}#>Ns>W4G"
    "T6n~CJ^m?&pO{WG`Gb1#K%@~Ur9oJ5=w=PkyZ-YWzBy{agLvh!*sZw!NNeDkvUbG6?2yugIaBFz6E{($RB1M"
)
LOCKED = (
    "c-pm7&ui2`6ut<xQz;%rQRcEo&CFzGG6Tzk?RK?P?YgyE5DSxJW=&a>lFdr%k3;b$9t!>ewg<txp1gSMNj!)sJ$O*igU9*@ILX#-Xhgi2gpl"
    "{mo9~<V-j`at**c5QQBeEx_1$}bA%cm&0_t_(w9_OU1UiLvL4?bE;d8$M8V#W1FwY^S+-vKr8ai#&)qUVhCxbYH1UPe1*oQYEwTT_*74KUm0"
    "=Ggituob1x?sozbA=9Y<_B3Xift^5ctk+|cmm*D)?uWkk~OQ1?9DNOo+MV=>F9nkNCV52?`b9WoW%!*>^HZ4Yz1+q<E#()@C0p@>b#^w`mCa"
    "#GXiH};AcgcgBUnds;>(z=c4Z2)map%5(_V}T+(qjyA3JJ*ZWzj)gAEW#)F-$9(i<SXL;#V(wiG!dHea*kI9eYyY(k8zg@lX{QR-4<%!d1Fc"
    "uwM%t`n6?bCbzy-DJ)O%m1eTwW?~d-lV|>&?yG@Z^i{%acbop6>0P8T-`TeKxVw+`fMT9sl|8akVNrVjW3gRMNVhJFo-Y1653fJtU+=Qpr6c"
    "?Q$#XW!B)%LZ;$SrJ?m2tfSCpf-w^?mvF|V_BfM>2g-1&sokz<Kv2lFl-z{cNbYLsGbE6a8VT37W)aqz!U`KNFdmgic*ygqz!Vd0Jm!Xs6X6"
    "@GnWoxfLQ%{qLN?~c7=<tr<v(pL)dnDlF+c|w<czrt8hC(VJDp-B9$`#YFidC_6V*HydsR$SF)By}<M|{GW0F@eudI=!D(dO97~Vp3Pv`YIo"
    "g~SiJ2cpAY!Zm~znj*#bxuMWgeX)z@HJ5aNyM=4YC9oM8`p3AONw>;OdO=^s~Ic|)ESynrCHH;>AIj+o0)HcU(;%2o&"
)
"""Two pages encrypted by RC4, without a password and with one, packed."""


@pytest.mark.parametrize(
    ("packed", "warning", "n_parts"), [(OPEN, None, 2), (LOCKED, "is encrypted", 0)]
)
def test_encrypted_pdf_needs_no_or_reports_password(
    packed: str, warning: str | None, n_parts: int
) -> None:
    """A PDF without a user password is read although it is encrypted; otherwise it is reported."""
    extracted = read("a.pdf", zlib.decompress(base64.b85decode(packed)))
    assert (extracted.warning, len(extracted.parts)) == (warning, n_parts)


@pytest.mark.parametrize("name", ["a.docx", "a.pptx", "a.xlsx", "a.odt", "a.epub"])
def test_truncated_archive_is_damaged(name: str) -> None:
    """The beginning of a document is a failure with a reason, and not skipped as a binary file."""
    extracted = extraction.read(name, SAMPLES[name][:200])
    assert extracted.skipped_kind is None
    assert str(extracted.warning).startswith("is damaged")


@pytest.mark.parametrize(
    ("declaration", "encoding"),
    [
        ('<meta charset="koi8-r">', "koi8-r"),
        ("<META CHARSET=windows-1251>", "cp1251"),
        (
            '<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-5">',
            "iso8859-5",
        ),
        ('<meta charset="iso-8859-1">', "utf-8"),  # wrong, but frequent
        ('<meta charset="rot13">', "utf-8"),
        ('<meta charset="koi8-r">', "utf-8-sig"),
        ("", "utf-16"),
    ],
)
def test_html_is_decoded_as_declared(declaration: str, encoding: str) -> None:
    """A byte-order mark comes first, then the encoding that the page declares."""
    page = f"<!DOCTYPE html>{declaration}<p>Привет мир</p>"
    ((_, text),) = read("a.html", page.encode(encoding)).parts
    assert text == "Привет мир"


def test_pdf_with_unreadable_page_keeps_other_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other pages are extracted, and the warning has the number of the unreadable page."""
    numbers = itertools.count(1)
    whole = pypdfium2.PdfPage.get_textpage

    def sometimes(page: pypdfium2.PdfPage) -> pypdfium2.PdfTextPage:
        if next(numbers) == 2:
            raise pypdfium2.PdfiumError("no text\nand more")
        return whole(page)

    monkeypatch.setattr(pypdfium2.PdfPage, "get_textpage", sometimes)
    extracted = read("a.pdf", pdf("one", "two", "three"))
    assert [place["page"] for place, _ in extracted.parts] == [1, 3]
    assert (
        extracted.warning
        == "has 1 of 3 pages that cannot be read (page 2: PdfiumError: no text and more)"
    )


def test_pdf_page_title_has_outline_heading() -> None:
    """A page has the document title and the last outline heading on or before it."""
    outline = {"One": 2, "Two": 3}
    extracted = read("a.pdf", pdf("a", "b", "c", "d", title="Ferries", outline=outline))
    titles = ["Ferries", "Ferries > One", "Ferries > Two", "Ferries > Two"]
    assert [place["title"] for place, _ in extracted.parts] == titles
    assert [place for place, _ in read("a.pdf", pdf("a", "b", outline={"One": 2})).parts] == [
        {"page": 1},
        {"page": 2, "title": "One"},
    ]


def test_pdf_timeout_keeps_extracted_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the time limit is reached, the pages extracted so far are kept."""
    whole = pypdfium2.PdfPage.get_textpage
    numbers = itertools.count(1)

    def slow(page: pypdfium2.PdfPage) -> pypdfium2.PdfTextPage:
        while next(numbers) > 2:
            pass
        return whole(page)

    monkeypatch.setattr(extraction, "MAX_CPU_S", 0.1)
    monkeypatch.setattr(pypdfium2.PdfPage, "get_textpage", slow)
    extracted = read("a.pdf", pdf("one", "two", "three"))
    assert [text for _, text in extracted.parts] == ["one", "two"]
    assert extracted.warning == "took more than 0.1 s of processor time to read"


@pytest.mark.parametrize(
    ("limit", "value", "name", "content", "warning", "n_parts"),
    [
        ("MAX_BYTES", 1 << 20, "a.html", b"x" * ((1 << 20) + 1), "is larger than 1 MiB", 0),
        (
            "MAX_PAGES",
            2,
            "a.pdf",
            pdf("a", "b", "c"),
            "has 3 pages, of which the first 2 are searched",
            2,
        ),
        ("MAX_CHARS", 7, "a.pdf", pdf("four", "four"), "has more than 7 characters of text", 1),
        (
            "MAX_UNPACKED_BYTES",
            1 << 20,
            "a",
            docx(run("x" * (1 << 20))),
            "has more than 1 MiB unpacked",
            0,
        ),
    ],
)
def test_large_document_is_cut_with_warning(
    limit: str,
    value: int,
    name: str,
    content: bytes,
    warning: str,
    n_parts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A document above a size limit is read up to the limit, and the warning has the limit."""
    monkeypatch.setattr(extraction if hasattr(extraction, limit) else office, limit, value)
    extracted = read(name, content)
    assert (extracted.warning, len(extracted.parts)) == (warning, n_parts)


@pytest.mark.parametrize("n_caught", [0, 1])
def test_endless_extractor_is_stopped(n_caught: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extractor that catches all exceptions is stopped, and its partial text is kept."""

    def endless(_content: bytes, found: Extracted) -> None:
        found.add({"page": 1}, "read before")
        for _ in range(n_caught):
            with contextlib.suppress(BaseException):
                while True:
                    pass
        while True:
            pass

    monkeypatch.setattr(extraction, "MAX_CPU_S", 0.1)
    monkeypatch.setitem(extraction._EXTRACTORS, "HTML", endless)
    warning = "took more than 0.1 s of processor time to read"
    assert extract(b"", "HTML") == Extracted(
        [({"page": 1}, "read before")], warning, has_headings=True, n_chars=11
    )


def test_time_limit_counts_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is on processor time, so waiting for the processor does not count."""

    def waits(_content: bytes, found: Extracted) -> None:
        time.sleep(0.3)  # as a process does that is given no processor
        found.add({}, "all of it")

    monkeypatch.setattr(extraction, "MAX_CPU_S", 0.1)
    monkeypatch.setitem(extraction._EXTRACTORS, "HTML", waits)
    assert extract(b"", "HTML") == Extracted([({}, "all of it")], has_headings=True, n_chars=9)


def test_extract_restores_timer_and_signal_handler() -> None:
    """After extraction the timer is off and the caller's signal handler is restored."""
    before = signal.getsignal(signal.SIGPROF)
    extract(b"<p>fine", "HTML")
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGPROF) is before


def test_extract_works_in_other_thread() -> None:
    """Outside of the main thread, where timers cannot be used, documents are read as usual."""
    found: list[Extracted] = []
    thread = threading.Thread(target=lambda: found.append(extract(SAMPLES["a.pdf"], "PDF")))
    thread.start()
    thread.join()
    assert len(found[0].parts) == 2


def test_sheet_cells_have_column_headings() -> None:
    """Below a header row each cell is prefixed with the heading of its column."""
    rows = [["Fish", "Price"], ["Cod", 9], ["", 7], ["Eel", ""]]
    assert read("a", xlsx(Menu=rows)).parts == [
        (
            {"sheet": "Menu"},
            "| Fish | Price |\n| --- | --- |\n| Fish: Cod | Price: 9 |\n|  | Price: 7 |\n| Fish: Eel |",
        ),
    ]
    assert (
        read("a", xlsx(Menu=[["Cod", 9], ["Eel", "dear"]])).parts[0][1]
        == "| Cod | 9 |\n| Eel | dear |"
    )
    assert (
        read("a", xlsx(Menu=[["Menu"], ["Fish", "Price"], ["Cod", 9]])).parts[0][1]
        == "Menu\n\n| Fish | Price |\n| --- | --- |\n| Fish: Cod | Price: 9 |"
    )


@pytest.mark.parametrize(
    ("table_xml", "text"),
    [
        (
            table(("City", "Limit per night"), ("London", "£190"), ("Paris", "€ 150 | 160")),
            "| City | Limit per night |\n| --- | --- |\n| City: London | Limit per night: £190 |\n"
            "| City: Paris | Limit per night: € 150 \\| 160 |",
        ),
        (
            table(("Name", "Anna"), ("Address", "12 Mill Lane"), ("City", "London")),
            "| Name | Anna |\n| Address | 12 Mill Lane |\n| City | London |",
        ),
        (
            table(("Name", "Use"), ("Tea", "Drink"), marks="<w:trPr><w:tblHeader/></w:trPr>"),
            "| Name | Use |\n| --- | --- |\n| Name: Tea | Use: Drink |",
        ),
        (table(("a", ""), ("", ""), ("b", "c")), "a\n| b | c |"),
        (
            table(("y", "z"), cell=table(("a", "b"))[len("</w:p>") : -len("<w:p>")]),
            "| a b y | a b z |",
        ),
        (
            table(("a", "b"), cell='<w:tcPr><w:gridSpan w:val="2"/></w:tcPr>'),
            "| a |  | b |",
        ),
        ("</w:p></w:tc></w:tr></w:tbl><w:p>", None),
    ],
)
def test_table_of_document_becomes_rows(table_xml: str, text: str | None) -> None:
    """A table is written as rows; below a header row each cell begins with the column name."""
    found = read("a", docx(run("Limits") + table_xml + run("End")))
    if text is None:
        assert found.warning
    else:
        assert found.parts == [({}, f"Limits\n\n{text}\n\nEnd")]


def test_repeated_cells_of_opendocument_are_aligned() -> None:
    """Repeated and covered cells keep their columns, up to a limit."""
    cells = (
        "<table:table-cell><text:p>a</text:p></table:table-cell><table:covered-table-cell/>"
        '<table:table-cell number-columns-repeated="2"><text:p>b</text:p></table:table-cell>'
        '<table:table-cell number-columns-repeated="16000"/>'
    )
    row = f"<table:table-row>{cells}</table:table-row>"
    text = f'<table:table xmlns:table="x">{row}</table:table><text:p>End</text:p>'
    assert read("a", odt(text)).parts == [({}, "| a |  | b | b |\n\nEnd")]


def test_repeated_cells_count_toward_unpacked_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small table with repeated long cells is refused at the unpacked size limit."""
    monkeypatch.setattr(office, "MAX_UNPACKED_BYTES", 1 << 20)
    cell = f'<table:table-cell number-columns-repeated="99"><text:p>{"x" * 20_000}</text:p></table:table-cell>'
    text = f'<table:table xmlns:table="x"><table:table-row>{cell}</table:table-row></table:table>'
    assert read("a", odt(text)).warning == "has more than 1 MiB unpacked"


CSV_TEXTS = {
    "a,b\n1,2\n": "| a | b |\n| a: 1 | b: 2 |",
    "a;b\r\n1,5;2\r\n": "| a | b |\n| a: 1,5 | b: 2 |",
    "a\tb\n1\t\n\n\t2": "| a | b |\n| a: 1 |\n\n|  | b: 2 |",
    'a,b\n1,"x\ny"\n3,4\n': "| a | b |\n| a: 1 | b: x y |\n\n| a: 3 | b: 4 |",
    "1,2\n3,4\n": "| 1 | 2 |\n| 3 | 4 |",
    "city,2023,2024\nRome,1,2\n": "| city | 2023 | 2024 |\n| city: Rome | 2023: 1 | 2024: 2 |",
    'pipe,length\n1,"5\n' + "2,6\n" * 2000: '| pipe | length |\n| pipe: 1 | length: "5 |\n'
    + "\n".join(["| pipe: 2 | length: 6 |"] * 2000),
    "a,b\n1,\0\n": "| a | b |\n| a: 1 | b: \0 |",
}


@pytest.mark.parametrize("text", CSV_TEXTS)
def test_csv_records_become_rows(text: str) -> None:
    """A record is a row in its own line, and each cell begins with its column name."""
    assert tables.table_text(text, 1 << 20) == CSV_TEXTS[text]
    assert extraction.read("a.CSV", b"\xef\xbb\xbf" + text.encode()).parts == [
        ({}, CSV_TEXTS[text])
    ]
    assert extraction.read("a.txt", b"\xef\xbb\xbf" + text.encode()).parts == [({}, text)]


@pytest.mark.parametrize(
    "text",
    [
        "no delimiter\n1,2",
        "a," * 50_000,
        "a,b\n" + "1," * (1 << 20),
        'a,b\n1,"' + "x" * 200_000,
        "a,b\n" + "1,2\n" * 100_000,
        "",
    ],
)
def test_csv_beyond_limits_is_plain_text(text: str) -> None:
    """A text that is no table, or exceeds a limit, is returned unchanged."""
    assert tables.table_text(text, 1 << 20) == text


@given(st.text(alphabet='ab1,;"\n\r\t|\0 ', max_size=40))
def test_csv_keeps_all_values(text: str) -> None:
    """Every letter and digit of the file is in the text, which has no more lines than the file."""
    rows = tables.table_text("k,v\n" + text, 1 << 20)
    assert len(rows.splitlines()) <= len(("k,v\n" + text).splitlines()) + 1
    for letter in "ab1":
        assert rows.count(letter) == text.count(letter)


def test_shared_strings_count_toward_unpacked_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small sheet that repeats a long shared string is cut at the unpacked size limit."""
    monkeypatch.setattr(office, "MAX_UNPACKED_BYTES", 1 << 20)
    cells = '<c t="s"><v>0</v></c>' * 200
    bomb = archive(
        {
            "xl/workbook.xml": '<workbook xmlns:r="x/relationships"><sheet name="a" r:id="1"/></workbook>',
            "xl/_rels/workbook.xml.rels": '<a><Relationship Id="1" Target="worksheets/a.xml"/></a>',
            "xl/worksheets/a.xml": f"<worksheet><row>{cells}</row></worksheet>",
            "xl/sharedStrings.xml": f"<sst><si><t>{'x' * 10_000}</t></si></sst>",
        }
    )
    assert read("a", bomb) == Extracted(warning="has more than 1 MiB unpacked", has_headings=True)


def test_slide_title_becomes_heading() -> None:
    """A slide title is written as a heading; an empty title is omitted."""
    slide = '</a:t></a:r></a:p><p:ph type="{0}"/><a:p><a:r><a:t>{1}</a:t></a:r></a:p><a:p><a:r><a:t>Text'
    titled = [
        slide.format("title", "Ferries"),
        slide.format("ctrTitle", ""),
        slide.format("body", "Boats"),
    ]
    texts = [text for _, text in read("a", pptx(*titled)).parts]
    assert texts == ["# Ferries\n\nText", "Text", "Boats\n\nText"]


@pytest.mark.parametrize(
    ("content", "warning"),
    [
        (archive({"META-INF/container.xml": "<container/>"}), "names no package"),
        (
            archive({"META-INF/container.xml": '<rootfile full-path="a.opf"/>'}),
            "no item named 'a.opf'",
        ),
        (
            archive({"META-INF/container.xml": "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"}),
            "declares a document type",
        ),
        (epub("text\0"), "a chapter is not text"),
    ],
)
def test_damaged_epub_has_warning(content: bytes, warning: str) -> None:
    """A book with missing files or encrypted text has a warning."""
    assert warning in str(read("a", content).warning)


def test_large_epub_keeps_earlier_chapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chapter above the unpacked limit ends the book, and earlier chapters are kept."""
    monkeypatch.setattr(office, "MAX_UNPACKED_BYTES", 1 << 20)
    found = read("a", epub("<p>One", "x" * (1 << 20)))
    assert (found.parts, found.warning) == (
        [({"chapter": 1}, "One")],
        "has more than 1 MiB unpacked",
    )
