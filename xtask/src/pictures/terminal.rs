//! Draws the output of a program on a terminal.

use std::fmt::Write as _;

/// Width of a character and height of a line, in units of the picture.
const CELL: (f64, f64) = (8.4, 19.0);
/// Distance of the text from the left edge, and of the first line from the top.
const FIRST: (f64, f64) = (12.0, 52.0);

/// Draws a command line and its output as a window of a terminal. `output` may have codes for
/// colours; all other codes are left out.
pub(super) fn svg(command: &str, output: &str) -> String {
    let text = format!("\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m\n{output}");
    let lines: Vec<Vec<Run>> = text.trim_end().lines().map(runs).collect();
    let columns = lines.iter().map(|line| line.iter().map(|run| run.len).sum()).max();
    let width = FIRST.0.mul_add(2.0, columns.unwrap_or(0) as f64 * CELL.0).ceil();
    let height = FIRST.1 + lines.len() as f64 * CELL.1;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{} in a terminal\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"9\" fill=\"#0d1117\"/>",
        escaped(command)
    );
    for (place, colour) in [(20, "#ff5f57"), (40, "#febc2e"), (60, "#28c840")] {
        let _ = write!(svg, "<circle cx=\"{place}\" cy=\"18\" r=\"6\" fill=\"{colour}\"/>");
    }
    svg.push_str(
        "\n<g font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',\
         monospace\" font-size=\"14\" fill=\"#c9d1d9\">\n",
    );
    for (number, line) in lines.iter().enumerate() {
        let (mut column, y) = (0, FIRST.1 + number as f64 * CELL.1);
        for run in line {
            for (at, text) in pieces(&run.text) {
                let x = FIRST.0 + (column + at) as f64 * CELL.0;
                // The font of the reader may be wider or narrower.
                let long = text.chars().count() as f64 * CELL.0;
                let _ = writeln!(
                    svg,
                    "<text x=\"{x:.1}\" y=\"{y}\" textLength=\"{long:.1}\" \
                     lengthAdjust=\"spacingAndGlyphs\"{}>{}</text>",
                    run.look,
                    escaped(text)
                );
            }
            column += run.len;
        }
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// Text with one look.
struct Run {
    text: String,
    /// The number of columns of the text.
    len: usize,
    look: &'static str,
}

/// The parts of a text between two or more spaces, each with its column. A browser draws several
/// spaces as one.
fn pieces(text: &str) -> Vec<(usize, &str)> {
    let (mut pieces, mut column) = (Vec::new(), 0);
    for piece in text.split("  ") {
        let start = piece.trim_start();
        let lead = piece.len() - start.len();
        if !start.trim_end().is_empty() {
            pieces.push((column + lead, start.trim_end()));
        }
        column += piece.chars().count() + 2;
    }
    pieces
}

/// Divides a line where its look changes.
fn runs(line: &str) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut look = "";
    for (index, part) in line.split("\x1b[").enumerate() {
        let mut text = part;
        if index > 0 {
            // A code ends with a letter; only `m` changes the look.
            let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
            let (code, rest) = part.split_at(end);
            text = rest;
            look = match code {
                "1m" | "1;34m" => " fill=\"#ffffff\" font-weight=\"bold\"",
                "2m" => " fill=\"#8b949e\"",
                "31m" => " fill=\"#ff7b72\"",
                "32m" => " fill=\"#7ee787\"",
                code if code.ends_with('m') => "",
                _ => look,
            };
        }
        let text: String = text.chars().filter(|c| !c.is_control()).collect();
        let len = text.chars().count();
        if len > 0 {
            runs.push(Run { text, len, look });
        }
    }
    runs
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_divide_a_line() {
        let runs = runs("\x1b[?25la \x1b[32mgreen\x1b[0m\x1b[K <b>\r");
        let seen: Vec<_> = runs.iter().map(|run| (run.text.as_str(), run.len)).collect();
        assert_eq!(seen, [("a ", 2), ("green", 5), (" <b>", 4)]);
        assert!(runs[1].look.contains("7ee787") && runs[2].look.is_empty());
        assert!(svg("x", "<b>").contains("&lt;b&gt;"));
        assert_eq!(pieces("  made   4 GiB     µ 5 "), [(2, "made"), (9, "4 GiB"), (19, "µ 5")]);
    }
}
