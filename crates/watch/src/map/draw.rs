//! The drawing: devices as bars, block groups as cards of cells.

use std::fmt::Write as _;

use buttress_control::size;
use buttress_survey::{Map, MapCell, MapGroup};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 48.0;
const CARDS_IN_A_ROW: usize = 4;
const GAP: f64 = 20.0;
const COLUMNS: usize = 32;

/// Colours by class, for a light and for a dark theme.
const STYLE: &str = r"
.bg{fill:#fcfcfa}.ink{fill:#1c2126}.mut{fill:#6b737c}.e{fill:#ebebe6}.line{stroke:#e0e0da}
.D{fill:#3a6ea5}.M{fill:#d08a2e}.S{fill:#8268ad}.H{fill:#2b9088}
text{font-family:Inter,'Helvetica Neue','Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif}
.t{font-size:26px;font-weight:650;letter-spacing:-.02em}.h{font-size:15px;font-weight:600}
.s{font-size:12.5px}.x{font-size:11px}.n{font-variant-numeric:tabular-nums}
@media (prefers-color-scheme:dark){.bg{fill:#14171a}.ink{fill:#e7e9eb}.mut{fill:#8b949e}
.e{fill:#23282e}.line{stroke:#2a3037}.D{fill:#6aa3dc}.M{fill:#e0a552}.S{fill:#ab93d6}.H{fill:#4fbcb2}}
";

/// The place of a block group's cells in the picture.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Card {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) columns: usize,
    pub(super) pitch: f64,
}

/// A drawing, and the place of each block group in it.
pub(super) struct Drawing {
    pub(super) title: String,
    pub(super) svg: String,
    pub(super) cards: Vec<Card>,
}

/// Escapes a text, so that it contains no markup.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A drawing while it grows downwards. Writing into a string cannot fail.
struct Sheet {
    body: String,
    y: f64,
}

impl Sheet {
    fn text(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        let text = escaped(text);
        let _ =
            write!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>");
    }

    fn text_at_end(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        let text = escaped(text);
        let _ = write!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"end\">{text}</text>"
        );
    }

    fn rect(&mut self, (x, y, width, height): (f64, f64, f64, f64), class: &str, more: &str) {
        let _ = write!(
            self.body,
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" \
             class=\"{class}\"{more}/>"
        );
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A size with a space before its unit.
fn human(bytes: u64) -> String {
    let text = size::human(bytes);
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    format!("{} {}", &text[..at], &text[at..])
}

/// The class of a kind of block group.
fn class(kind: &str) -> &'static str {
    match kind {
        "Metadata" => "M",
        "System" => "S",
        _ => "D",
    }
}

/// The share of free space that is not in its largest piece, as a percentage.
fn fragmented(group: &MapGroup) -> u64 {
    let free = group.len.saturating_sub(group.used);
    let apart = free.saturating_sub(group.free_largest) * 100;
    apart.checked_div(free).unwrap_or(0)
}

impl Drawing {
    pub(super) fn of(map: &Map, name: &str) -> Self {
        let mut sheet = Sheet { body: String::new(), y: 64.0 };
        head(map, name, &mut sheet);
        devices(map, &mut sheet);
        let mut cards = vec![Card::default(); map.groups.len()];
        for kind in ["Data", "Data+Metadata", "Metadata", "System"] {
            let of_kind = map.groups.iter().enumerate().filter(|(_, group)| group.kind == kind);
            let of_kind: Vec<_> = of_kind.collect();
            if !of_kind.is_empty() {
                section(kind, &of_kind, &mut sheet, &mut cards);
            }
        }
        let (height, body) = (sheet.y + 12.0, sheet.body);
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
             width=\"{WIDTH}\" height=\"{height:.0}\"><style>{STYLE}</style>\
             <rect width=\"{WIDTH}\" height=\"{height:.0}\" class=\"bg\"/>{body}</svg>\n"
        );
        Self { title: name.to_owned(), svg, cards }
    }
}

fn head(map: &Map, name: &str, sheet: &mut Sheet) {
    sheet.text((MARGIN, sheet.y), "ink t", name);
    let size: u64 = map.devices.iter().map(|device| device.bytes).sum();
    let used: u64 = map.groups.iter().map(|group| group.used).sum();
    let extents: u64 = map.groups.iter().map(|group| group.extents).sum();
    let (devices, groups) = (map.devices.len() as u64, map.groups.len() as u64);
    let facts = format!(
        "{} on {devices} device{}  ·  {} in use  ·  {extents} extents in {groups} block group{}",
        human(size),
        plural(devices),
        human(used),
        plural(groups)
    );
    sheet.text((MARGIN, sheet.y + 24.0), "mut s n", &facts);
    let mut x = WIDTH - MARGIN;
    for (class, word, width) in [
        ("e", "free", 37.0),
        ("H", "shared data", 90.0),
        ("S", "system", 66.0),
        ("M", "metadata", 80.0),
        ("D", "data", 50.0),
    ] {
        x -= width;
        sheet.rect((x, sheet.y + 14.5, 10.0, 10.0), class, " rx=\"2.5\"");
        sheet.text((x + 16.0, sheet.y + 24.0), "mut x", word);
    }
    sheet.y += 70.0;
}

fn devices(map: &Map, sheet: &mut Sheet) {
    let widest = map.devices.iter().map(|device| device.bytes).max().unwrap_or(0).max(1);
    let whole = WIDTH - 2.0 * MARGIN;
    for device in &map.devices {
        let allocated: u64 = device.stripes.iter().map(|(_, bytes, _)| bytes).sum();
        sheet.text((MARGIN, sheet.y), "ink h", &format!("Device {}", device.id));
        let facts = format!("{} of {} allocated", human(allocated), human(device.bytes));
        sheet.text_at_end((WIDTH - MARGIN, sheet.y), "mut s n", &facts);
        let scale = whole / widest as f64;
        let y = sheet.y + 12.0;
        let bar = (MARGIN, y, device.bytes as f64 * scale, 26.0);
        sheet.rect(bar, "e", " rx=\"4\"");
        for (at, bytes, group) in &device.stripes {
            let width = (*bytes as f64 * scale - 1.0).max(0.6);
            let x = MARGIN + *at as f64 * scale;
            let group = &map.groups[(*group).min(map.groups.len() - 1)];
            let fill = group.used as f64 / group.len.max(1) as f64;
            let class = class(&group.kind);
            // Allocated space is pale. The share of the space that is in use is drawn from the
            // bottom.
            sheet.rect((x, y, width, 26.0), class, " fill-opacity=\".28\" rx=\"2\"");
            let height = 26.0 * fill;
            if height > 0.2 {
                sheet.rect((x, y + 26.0 - height, width, height), class, " rx=\"1\"");
            }
        }
        sheet.y += 66.0;
    }
    sheet.y += 20.0;
}

fn section(kind: &str, groups: &[(usize, &MapGroup)], sheet: &mut Sheet, cards: &mut [Card]) {
    let (right, rule) = (WIDTH - MARGIN, sheet.y - 22.0);
    let _ = write!(
        sheet.body,
        "<line x1=\"{MARGIN}\" x2=\"{right}\" y1=\"{rule:.1}\" y2=\"{rule:.1}\" class=\"line\"/>"
    );
    sheet.y += 6.0;
    sheet.text((MARGIN, sheet.y), "ink h", kind);
    let len: u64 = groups.iter().map(|(_, group)| group.len).sum();
    let used: u64 = groups.iter().map(|(_, group)| group.used).sum();
    let facts = format!("{} of {} in use", human(used), human(len));
    sheet.text_at_end((right, sheet.y), "mut s n", &facts);
    sheet.y += 28.0;
    let width = (WIDTH - 2.0 * MARGIN - GAP * (CARDS_IN_A_ROW - 1) as f64) / CARDS_IN_A_ROW as f64;
    let pitch = width / COLUMNS as f64;
    for row in groups.chunks(CARDS_IN_A_ROW) {
        let mut height: f64 = 0.0;
        for (place, (number, group)) in row.iter().enumerate() {
            let x = MARGIN + place as f64 * (width + GAP);
            let y = sheet.y + 12.0;
            cards[*number] = Card { x, y, columns: COLUMNS, pitch };
            card(group, cards[*number], width, sheet);
            let rows = group.cells.len().div_ceil(COLUMNS);
            height = height.max(rows as f64 * pitch);
        }
        sheet.y += height + 58.0;
    }
    sheet.y += 12.0;
}

fn card(group: &MapGroup, card: Card, width: f64, sheet: &mut Sheet) {
    let Card { x, y, columns, pitch } = card;
    let share = group.used as f64 * 100.0 / group.len.max(1) as f64;
    let title = format!("{} at {}", human(group.len), human(group.start));
    sheet.text((x, y - 8.0), "ink x n", &title);
    let fill = format!("{}, {share:.0}% full", group.profile);
    sheet.text_at_end((x + width, y - 8.0), "mut x n", &fill);
    let len = group.len as f64 / group.cells.len().max(1) as f64;
    let class = class(&group.kind);
    for (number, cell) in group.cells.iter().enumerate() {
        let at = (x + (number % columns) as f64 * pitch, y + (number / columns) as f64 * pitch);
        let side = pitch - 1.1;
        let place = (at.0, at.1, side, side);
        if cell.used == 0 {
            sheet.rect(place, "e", " rx=\"1.6\"");
            continue;
        }
        sheet.rect(place, shade(cell, class), &opacity(cell.used as f64 / len));
    }
    let rows = group.cells.len().div_ceil(columns);
    let below = y + rows as f64 * pitch + 13.0;
    let extents = format!("{} extent{}", group.extents, plural(group.extents));
    let facts = match group.free_pieces {
        0 => extents,
        1 => format!("{extents}  ·  free space in one piece"),
        pieces => {
            format!("{extents}  ·  {pieces} pieces free, {}% fragmented", fragmented(group))
        }
    };
    sheet.text((x, below), "mut x n", &facts);
}

/// Returns the class of a cell. A cell gets the class of shared data if most of its data is shared.
fn shade(cell: &MapCell, class: &'static str) -> &'static str {
    if cell.shared * 2 > cell.used { "H" } else { class }
}

/// Five steps from nearly empty to full.
fn opacity(fill: f64) -> String {
    let step = (fill * 5.0).ceil().clamp(1.0, 5.0);
    if step > 4.0 {
        return " rx=\"1.6\"".to_owned();
    }
    format!(" rx=\"1.6\" fill-opacity=\"{:.2}\"", 0.22 + step * 0.16)
}
