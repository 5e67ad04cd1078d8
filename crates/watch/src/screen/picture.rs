//! Cells as text, and as a drawing that any browser shows.
//!
//! # What must hold
//!
//! - A drawing is one file without scripts, and loads nothing from the network.
//! - Names of mounts are in the drawing as text, never as markup.

use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// The size of a cell in pixels.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 18.0;
/// The space around the cells in pixels.
const MARGIN: f64 = 16.0;
/// The colours of the terminal that is drawn.
const BACK: &str = "#14161a";
const FRONT: &str = "#d7dae0";

/// The cells as lines of text, without colour.
pub fn text(cells: &Buffer) -> String {
    let mut text = String::new();
    for row in rows(cells) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The cells as SVG.
pub fn svg(cells: &Buffer) -> String {
    let width = f64::from(cells.area.width) * WIDTH + 2.0 * MARGIN;
    let height = f64::from(cells.area.height) * HEIGHT + 2.0 * MARGIN;
    // Writing into a string cannot fail.
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.1} {height:.1}\" \
         font-family=\"'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\">"
    );
    let _ = writeln!(svg, "<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACK}\"/>");
    for (y, row) in rows(cells).enumerate() {
        let top = MARGIN + y as f64 * HEIGHT;
        let mut x = 0;
        while x < row.len() {
            let same = row[x..].iter().take_while(|cell| is_alike(cell, &row[x])).count();
            draw_run(&row[x..x + same], MARGIN + x as f64 * WIDTH, top, &mut svg);
            x += same;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn rows(cells: &Buffer) -> impl Iterator<Item = &[Cell]> {
    cells.content.chunks(usize::from(cells.area.width.max(1)))
}

/// Whether two cells are drawn in one piece.
fn is_alike(a: &Cell, b: &Cell) -> bool {
    (a.fg, a.bg, a.modifier) == (b.fg, b.bg, b.modifier)
        && (shape(a).is_none() && shape(b).is_none() || a.symbol() == b.symbol())
}

/// Draws neighbouring cells with the same style.
fn draw_run(run: &[Cell], left: f64, top: f64, svg: &mut String) {
    let first = &run[0];
    let (mut front, mut back) = (colour(first.fg, FRONT), colour(first.bg, BACK));
    if first.modifier.contains(Modifier::REVERSED) {
        std::mem::swap(&mut front, &mut back);
    }
    let width = run.len() as f64 * WIDTH;
    if back != BACK {
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{HEIGHT}\" \
             fill=\"{back}\"/>"
        );
    }
    if let Some((share, opacity)) = shape(first) {
        let height = HEIGHT * share;
        let y = top + HEIGHT - height;
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{front}\" opacity=\"{opacity}\"/>"
        );
        return;
    }
    let text: String = run.iter().map(|cell| cell.symbol()).collect();
    if text.trim().is_empty() {
        return;
    }
    let weight = if first.modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    let _ = writeln!(
        svg,
        "<text x=\"{left:.1}\" y=\"{:.1}\" fill=\"{front}\"{weight} xml:space=\"preserve\" \
         textLength=\"{width:.1}\" lengthAdjust=\"spacingAndGlyphs\">{}</text>",
        top + HEIGHT * 0.75,
        escaped(&text)
    );
}

/// The height of a block character as a share of its cell, and its opacity.
fn shape(cell: &Cell) -> Option<(f64, f64)> {
    Some(match cell.symbol().chars().next()? {
        '█' => (1.0, 1.0),
        '▓' => (1.0, 0.75),
        '▒' => (1.0, 0.5),
        '░' => (1.0, 0.25),
        eighths @ '▁'..='▇' => (f64::from(eighths as u32 - '▁' as u32 + 1) / 8.0, 1.0),
        _ => return None,
    })
}

fn colour(colour: Color, otherwise: &'static str) -> &'static str {
    match colour {
        Color::Black => BACK,
        Color::Red | Color::LightRed => "#f07178",
        Color::Green | Color::LightGreen => "#8cc265",
        Color::Yellow | Color::LightYellow => "#e5c07b",
        Color::Blue | Color::LightBlue => "#4a9ff5",
        Color::Magenta | Color::LightMagenta => "#c678dd",
        Color::Cyan | Color::LightCyan => "#42b3c2",
        Color::DarkGray => "#6b7280",
        _ => otherwise,
    }
}

/// Escapes the characters that are markup in XML, and replaces the characters that XML cannot hold.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    use super::*;

    #[test]
    fn names_are_no_markup() {
        let mut cells = Buffer::empty(Rect::new(0, 0, 12, 2));
        cells.set_string(0, 0, "<a>&\"", Style::default());
        cells.set_string(0, 1, "██▒▄", Style::new().fg(Color::Green));
        let svg = svg(&cells);
        assert!(svg.contains("&lt;a&gt;&amp;"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 4, "{svg}");
        assert_eq!(text(&cells), "<a>&\"\n██▒▄\n");
    }
}
