"""Small documents in common file formats, with enough structure to hold text."""

import io
import zipfile
from collections.abc import Mapping, Sequence


def pdf(*pages: str, title: str = "", outline: Mapping[str, int] | None = None) -> bytes:
    """Return a PDF with one text per page, in lines, and an outline that maps headings to pages."""
    objects = ["<< /Type /Catalog /Pages 2 0 R /Outlines 4 0 R >>", "", ""]
    objects[2] = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    headings = list((outline or {}).items())
    chain = f"/First 6 0 R /Last {5 + len(headings)} 0 R" if headings else ""
    objects += [f"<< /Type /Outlines {chain} >>", f"<< /Title ({title}) >>"]
    first_page = 6 + len(headings)
    for at, (heading, page) in enumerate(headings):
        following = f"/Next {7 + at} 0 R" if at + 1 < len(headings) else ""
        target = f"[{first_page + 2 * page - 1} 0 R /Fit]"
        objects.append(f"<< /Title ({heading}) /Parent 4 0 R {following} /Dest {target} >>")
    kids = []
    for page in pages:
        lines = " T* ".join(f"({line}) Tj" for line in page.split("\n"))
        drawn = f"BT /F1 8 Tf 10 TL 72 720 Td {lines} ET"
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {len(objects)} 0 R >>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(pages)} >>"
    content, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(content))
        content += f"{number} 0 obj\n{one}\nendobj\n".encode("latin-1")
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    end += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info 5 0 R >>\nstartxref\n{len(content)}\n%%EOF\n"
    return content + end.encode()


def archive(members: Mapping[str, str]) -> bytes:
    """Pack members into a ZIP archive."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return packed.getvalue()


_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
_R = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
_RELATIONSHIPS = "http://schemas.openxmlformats.org/package/2006/relationships"


def docx(*paragraphs: str) -> bytes:
    """Return a Word document; a paragraph is the XML content of a ``w:p`` element."""
    body = "".join(f"<w:p>{paragraph}</w:p>" for paragraph in paragraphs)
    document = f'<?xml version="1.0" encoding="UTF-8"?><w:document {_W}><w:body>{body}</w:body></w:document>'
    return archive({"[Content_Types].xml": "<Types/>", "word/document.xml": document})


def run(text: str) -> str:
    """Return a run of text in a Word document."""
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def table(*rows: Sequence[str], marks: str = "", cell: str = "") -> str:
    """Return a table of a Word document after the end of a paragraph, and the start of another."""
    content = ""
    for row in rows:
        cells = "".join(f"<w:tc>{cell}<w:p>{run(text)}</w:p></w:tc>" for text in row)
        content += f"<w:tr>{marks}{cells}</w:tr>"
        marks = ""
    return f"</w:p><w:tbl>{content}</w:tbl><w:p>"


def _relations(targets: Sequence[str]) -> str:
    listed = "".join(
        f'<Relationship Id="rId{at}" Target="{target}"/>' for at, target in enumerate(targets, 1)
    )
    return f'<Relationships xmlns="{_RELATIONSHIPS}">{listed}</Relationships>'


def pptx(*slides: str) -> bytes:
    """Make a presentation, whose slides are stored in the opposite of their order."""
    n_slides = len(slides)
    targets = [f"slides/slide{n_slides - at}.xml" for at in range(n_slides)]
    listed = "".join(f'<p:sldId id="{256 + at}" r:id="rId{at + 1}"/>' for at in range(n_slides))
    members = {
        "ppt/presentation.xml": f'<p:presentation xmlns:p="p" {_R}><p:sldIdLst>{listed}</p:sldIdLst></p:presentation>',
        "ppt/_rels/presentation.xml.rels": _relations(targets),
    }
    for target, slide in zip(targets, slides, strict=True):
        text = f"<a:p><a:pPr><a:tab/></a:pPr><a:r><a:t>{slide}</a:t></a:r></a:p>"
        members[f"ppt/{target}"] = f'<p:sld xmlns:p="p" {_A}>{text}</p:sld>'
    return archive(members)


def xlsx(**sheets: Sequence[Sequence[str | float]]) -> bytes:
    """Return a workbook with shared strings, as Excel writes them, and numbers in their cells."""
    strings: list[str] = []

    def cell(column: int, value: str | float) -> str:
        place = f'r="{chr(65 + column)}1"'
        if not isinstance(value, str):
            return f"<c {place}><v>{value}</v></c>"
        strings.append(value)
        return f'<c {place} t="s"><v>{len(strings) - 1}</v></c>' if value else ""

    listed = "".join(
        f'<sheet name="{name}" sheetId="{at}" r:id="rId{at}"/>' for at, name in enumerate(sheets, 1)
    )
    targets = [f"/xl/worksheets/sheet{at}.xml" for at in range(1, len(sheets) + 1)]
    members = {
        "xl/workbook.xml": f'<workbook xmlns="x" {_R}><sheets>{listed}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": _relations(targets),
    }
    for target, rows in zip(targets, sheets.values(), strict=True):
        lines = "".join(f"<row>{''.join(map(cell, range(26), row))}</row>" for row in rows)
        members[target[1:]] = f'<worksheet xmlns="x"><sheetData>{lines}</sheetData></worksheet>'
    shared = "".join(f"<si><r><t>{text}</t></r><rPh><t>spoken</t></rPh></si>" for text in strings)
    members["xl/sharedStrings.xml"] = f'<sst xmlns="x">{shared}</sst>'
    return archive(members)


def odt(body: str) -> bytes:
    """Make an OpenDocument text."""
    spaces = 'xmlns:office="o" xmlns:text="t"'
    content = f"<office:document-content {spaces}><office:body>{body}</office:body></office:document-content>"
    return archive({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": content})


def epub(*pages: str, title: str = "", members: Mapping[str, str] | None = None) -> bytes:
    """Make a book of web pages, with a table of contents in front, stored in the opposite of their order."""
    listed = "".join(f'<item id="p{at}" href="text/p%20{at}.xhtml"/>' for at in range(len(pages)))
    spine = "".join(f'<itemref idref="p{at}"/>' for at in range(len(pages)))
    package = (
        f'<package xmlns="o" xmlns:dc="d"><metadata><dc:title>{title}</dc:title></metadata><manifest>'
        f'<item id="nav" properties="nav" href="nav.xhtml"/>{listed}</manifest>'
        f'<spine><itemref idref="nav"/>{spine}</spine></package>'
    )
    container = (
        '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
    )
    texts = {f"OEBPS/text/p {at}.xhtml": page for at, page in reversed(list(enumerate(pages)))}
    nav = {"OEBPS/nav.xhtml": "<p>Contents"}
    return archive(
        {"META-INF/container.xml": container, "OEBPS/book.opf": package}
        | nav
        | texts
        | dict(members or {})
    )
