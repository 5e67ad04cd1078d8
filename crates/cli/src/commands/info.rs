//! `buttress info`: describes a volume without mounting it.

use std::path::PathBuf;

use buttress_words::gather::Document;

use crate::exit::{Exit, Result};
use crate::image::Devices;
use crate::inspect::Inspect;
use crate::location::show;
use crate::size::human;
use crate::ui::{Tone, Ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image or block device of the volume, or a folder on its mount.
    #[arg(value_name = "IMG | DIR")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let inspect = Inspect::open(&args.image, &args.devices)?;
    let document = Document::gather(&inspect)?;
    if ui.json() {
        ui.document(&document)?;
        return Ok(Exit::Success);
    }
    print_superblock(&document, ui)?;
    print_devices(&document, ui)?;
    print_space(&document, ui)?;
    print_trees(&document, ui)?;
    Ok(Exit::Success)
}

fn print_superblock(document: &Document, ui: &Ui) -> Result<()> {
    let label = show(document.label.as_bytes());
    let label = if label.is_empty() { "none" } else { &label };
    ui.line(format!("{} {}", ui.tint(Tone::Heading, "Label:"), label))?;
    let rows = [
        ("uuid", document.uuid.clone()),
        ("generation", document.generation.to_string()),
        ("size", human(document.total_bytes)),
        ("used", human(document.bytes_used)),
        ("checksum", document.csum.clone()),
        ("node size", document.nodesize.to_string()),
        ("sector size", document.sectorsize.to_string()),
        ("features", document.incompat.join(" ")),
        ("read-only compatible", document.compat_ro.join(" ")),
        ("log", if document.has_log { "present" } else { "none" }.to_owned()),
    ];
    for (name, value) in rows {
        ui.line(format!("  {name:<22}{value}"))?;
    }
    Ok(())
}

fn print_devices(document: &Document, ui: &Ui) -> Result<()> {
    ui.line("")?;
    ui.line(ui.tint(Tone::Heading, "Devices"))?;
    for device in &document.devices {
        let path = device.path.as_deref().unwrap_or("missing");
        ui.line(format!(
            "  {:>3}  {:>10} size  {:>10} allocated  {path}",
            device.id,
            human(device.total_bytes),
            human(device.bytes_used),
        ))?;
    }
    Ok(())
}

fn print_space(document: &Document, ui: &Ui) -> Result<()> {
    ui.line("")?;
    ui.line(ui.tint(Tone::Heading, "Space"))?;
    for space in &document.space {
        let profile = match space.profile {
            "single" => "single".to_owned(),
            other => other.to_uppercase(),
        };
        let name = format!("{}, {profile}:", space.kind);
        ui.line(format!(
            "  {name:<18} {:>10} total  {:>10} used  {:>4} groups",
            human(space.total),
            human(space.used),
            space.groups,
        ))?;
    }
    Ok(())
}

fn print_trees(document: &Document, ui: &Ui) -> Result<()> {
    ui.line("")?;
    ui.line(ui.tint(Tone::Heading, "Trees"))?;
    for tree in &document.trees {
        let path = tree
            .path
            .as_ref()
            .map_or_else(String::new, |path| format!("  /{}", show(path.as_bytes())));
        let note = if tree.read_only { "  read-only" } else { "" };
        ui.line(format!(
            "  {:<18} level {}  {:>10}  generation {}{path}{note}",
            tree.name,
            tree.level,
            human(tree.bytes),
            tree.generation,
        ))?;
    }
    Ok(())
}
