//! `buttress compsize`: how well files are compressed, in the lines of the program `compsize`.

use std::ffi::OsString;

use buttress_control::named::Named;
use buttress_survey::{Packing, Sums};
use serde_json::json;

use crate::client;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::order::{Order, SurveyRequest};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file or folder, as IMG:/path or as a path on a mount.
    #[arg(value_name = "IMG:/PATH | PATH")]
    place: OsString,
    /// Print sizes in bytes.
    #[arg(long, short)]
    bytes: bool,
    /// Leave out other subvolumes.
    #[arg(long, short = 'x')]
    one_file_system: bool,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Exit> {
    let Named { volume, spot, .. } = Named::parse(&args.place)?;
    let order =
        Order::Survey { at: spot, request: SurveyRequest::Packing { stay: args.one_file_system } };
    let done = client::run(&order, &volume, &args.devices, "compsize", ui)?;
    let found: Packing = serde_json::from_value(done).context(|| "the answer")?;
    let rows = found.kinds.rows();
    let total = rows.iter().fold(Sums::default(), |sum, (_, row)| sum.plus(*row));
    if ui.json() {
        ui.document(&json!({
            "files": found.files,
            "extents": found.extents,
            "references": found.refs,
            "inline": found.inline,
            "total": total,
            "kinds": found.kinds,
        }))?;
        return Ok(Exit::Success);
    }
    if found.files == 0 {
        return Err(Failure::new(Exit::Failure, "No files."));
    }
    let Packing { files, extents, refs, inline, .. } = found;
    let counts = format!("{files} files, {extents} regular extents ({refs} refs), {inline} inline");
    ui.line(format!("Processed {counts}."))?;
    let line = |[name, share, disk, unpacked, referenced]: [&str; 5]| {
        format!("{name:<10} {share:<8} {disk:<12} {unpacked:<12} {referenced:<12}")
    };
    ui.line(line(["Type", "Perc", "Disk Usage", "Uncompressed", "Referenced"]))?;
    let size = |bytes: u64| if args.bytes { bytes.to_string() } else { short(bytes) };
    let shown = rows.iter().filter(|(_, row)| row.disk > 0 || row.referenced > 0);
    for (name, row) in std::iter::once(&("TOTAL", total)).chain(shown) {
        let share = format!("{:>3}%", row.disk * 100 / row.unpacked.max(1));
        let sizes = [size(row.disk), size(row.unpacked), size(row.referenced)];
        ui.line(line([name, &share, &sizes[0], &sizes[1], &sizes[2]]))?;
    }
    Ok(Exit::Success)
}

/// A size in two or three digits: `1.5M`, `980K`.
fn short(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];
    let mut unit = 0;
    let mut tenths = u128::from(bytes) * 10;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    if tenths < 100 && unit > 0 {
        format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[unit])
    } else {
        format!("{}{}", tenths / 10, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn sizes_have_two_or_three_digits() {
        let shown = [5, 999, 1536, 647_168, 1_617_920, 4_000_000].map(short);
        assert_eq!(shown, ["5B", "999B", "1.5K", "632K", "1.5M", "3.8M"]);
    }
}
