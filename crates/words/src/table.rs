//! `btrfs filesystem usage -T`: a column for each kind of block group, a row for each device.
//!
//! # What must hold
//!
//! - A column is as wide as its widest cell. Names are aligned to the left. Sizes and kinds are
//!   aligned as in btrfs-progs.

use crate::exit::Result;
use crate::ui::Ui;
use crate::units::Units;
use crate::usage::{Space, path, profile};

/// A cell of a table.
#[derive(Clone, Debug)]
enum Cell {
    Left(String),
    Right(String),
    /// As many dashes as the column is wide.
    Rule,
}

fn left(text: impl Into<String>) -> Cell {
    Cell::Left(text.into())
}

fn right(text: impl Into<String>) -> Cell {
    Cell::Right(text.into())
}

/// Prints the table of a volume.
///
/// # Errors
///
/// Standard output that cannot be written.
pub fn show(space: &Space, units: Units, ui: &Ui) -> Result<()> {
    ui.line("")?;
    for line in lines(&cells(space, units)) {
        ui.line(line)?;
    }
    Ok(())
}

fn cells(space: &Space, units: Units) -> Vec<Vec<Cell>> {
    let kinds = space.rows(["Data", "Metadata", "System"]);
    let devices = &space.document.devices;
    let row = |first: [Cell; 2], of_kind: Vec<Cell>, last: [Cell; 3]| {
        first.into_iter().chain(of_kind).chain(last).collect::<Vec<_>>()
    };
    let empty = || left("");
    let of_kinds = |make: &dyn Fn(usize) -> Cell| (0..kinds.len()).map(make).collect::<Vec<_>>();
    let rule = || {
        let rules = of_kinds(&|_| Cell::Rule);
        row([Cell::Rule, Cell::Rule], rules, [Cell::Rule, Cell::Rule, Cell::Rule])
    };
    let unallocated = |total: u64, used: u64| right(units.show(total.saturating_sub(used)));
    let mut table = vec![
        row([empty(), empty()], of_kinds(&|at| left(kinds[at].kind)), [empty(), empty(), empty()]),
        row(
            [left("Id"), left("Path")],
            of_kinds(&|at| left(profile(kinds[at]))),
            [left("Unallocated"), left("Total"), left("Slack")],
        ),
        rule(),
    ];
    for device in devices {
        let placed = |at: usize| {
            let key = (device.id, kinds[at].kind, kinds[at].profile);
            right(space.placed.get(&key).map_or_else(|| "-".to_owned(), |sum| units.show(*sum)))
        };
        table.push(row(
            [right(device.id.to_string()), left(path(device))],
            of_kinds(&placed),
            [
                unallocated(device.total_bytes, device.bytes_used),
                right(units.show(device.total_bytes)),
                right("-"),
            ],
        ));
    }
    table.push(rule());
    let total: u64 = devices.iter().map(|device| device.total_bytes).sum();
    let used: u64 = devices.iter().map(|device| device.bytes_used).sum();
    table.push(row(
        [empty(), left("Total")],
        of_kinds(&|at| right(units.show(kinds[at].total))),
        [unallocated(total, used), right(units.show(total)), right(units.show(0))],
    ));
    table.push(row(
        [empty(), left("Used")],
        of_kinds(&|at| right(units.show(kinds[at].used))),
        [empty(), empty(), empty()],
    ));
    table
}

/// The rows of a table as lines, each cell as wide as its column.
fn lines(table: &[Vec<Cell>]) -> Vec<String> {
    let width = |column: usize| {
        let texts = table.iter().map(|row| match &row[column] {
            Cell::Left(text) | Cell::Right(text) => text.chars().count(),
            Cell::Rule => 0,
        });
        texts.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.first().map_or(0, Vec::len)).map(width).collect();
    let line = |row: &Vec<Cell>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| match cell {
            Cell::Left(text) => format!("{text:<width$}"),
            Cell::Right(text) => format!("{text:>width$}"),
            Cell::Rule => "-".repeat(width),
        });
        cells.collect::<Vec<_>>().join(" ")
    };
    table.iter().map(line).collect()
}
