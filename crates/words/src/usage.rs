//! The usage of a volume, in the lines of btrfs-progs.
//!
//! # Place
//!
//! The figures come from the devices, as of the last commit. A mounted volume commits first. Its
//! server also reports the size of its global reserve.

use std::collections::BTreeMap;
use std::path::Path;

use buttress_base::text;
use serde::Serialize;

use crate::client;
use crate::exit::Result;
use crate::gather::{DeviceRow, Document, SpaceRow};
use crate::image::Devices;
use crate::inspect::Inspect;
use crate::order::Order;
use crate::ui::Ui;
use crate::units::Units;
use crate::{json, live};

/// Bytes of block groups of one kind and profile on each device.
pub type Placed = BTreeMap<(u64, &'static str, &'static str), u64>;

/// The known figures of a volume's space.
///
/// Plain data: what a reader found.
#[derive(Debug)]
pub struct Space {
    /// Devices, block groups and trees.
    pub document: Document,
    /// Where block groups lie.
    pub placed: Placed,
    /// Bytes that a program can still write.
    available: u64,
    /// Bytes that the server keeps in reserve for metadata, if a server runs.
    reserve: Option<u64>,
}

/// Opens a volume for reading. `place` is its image or device, or a folder of a mount. A mounted
/// volume commits first, and its server names all its devices.
///
/// # Errors
///
/// A volume that cannot be opened.
pub fn inspect(place: &Path) -> Result<Inspect> {
    let devices = Devices::default();
    let Some((_, answer)) = live::find(place)? else {
        return Inspect::open_quietly(place, &devices);
    };
    client::commit(place);
    let subject = answer.subject;
    let mount = subject.target.clone().filter(|_| subject.is_mounted());
    // The last commit of a mount with a cache is in the cache.
    let mount = mount.filter(|_| subject.cache.is_none());
    Inspect::open_quietly(&mount.unwrap_or(subject.image), &devices)
}

impl Space {
    /// Reads the figures of an image, a device, or a folder of a mount.
    ///
    /// # Errors
    ///
    /// A volume that cannot be opened or read.
    pub fn of(place: &Path, ui: &Ui) -> Result<Self> {
        let reserve = live::find(place)?.and_then(|(_, answer)| {
            let figures = answer.sections.iter().filter(|section| section.name == "space");
            let mut figures = figures.flat_map(|section| &section.figures);
            figures.find(|(name, _)| *name == "global_reserve_bytes")?.1.as_u64()
        });
        let room = client::run(&Order::Room, place, &Devices::default(), "usage", ui)?;
        let inspect = inspect(place)?;
        let mut placed = Placed::new();
        for chunk in &inspect.chunks.chunks {
            for stripe in &chunk.stripes {
                let key = (stripe.device.0, chunk.flags.kind_name(), chunk.flags.profile_name());
                *placed.entry(key).or_default() += chunk.stripe_bytes();
            }
        }
        let available = room["available"].as_u64().unwrap_or(0);
        Ok(Self { document: Document::gather(&inspect)?, placed, available, reserve })
    }

    /// The label, as it is printed.
    #[must_use]
    pub fn label(&self) -> String {
        crate::location::show(&text::decode(&self.document.label).unwrap_or_default())
    }

    /// Whether all devices are there.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.document.devices.iter().all(|device| device.path.is_some())
    }

    /// Returns the rows of block groups, in the order of these kinds.
    #[must_use]
    pub fn rows(&self, kinds: [&str; 3]) -> Vec<&SpaceRow> {
        let place = |row: &&SpaceRow| kinds.iter().position(|kind| row.kind.starts_with(kind));
        let mut rows: Vec<_> = self.document.space.iter().collect();
        rows.sort_by_key(|row| place(row).unwrap_or(kinds.len()));
        rows
    }

    /// Returns the number of bytes on the devices for one byte of the volume.
    fn ratio(&self, kind: &str) -> f64 {
        let mut sums = (0, 0);
        for row in self.document.space.iter().filter(|row| row.kind.starts_with(kind)) {
            sums.0 += row.total;
            sums.1 += self.on_devices(row);
        }
        if sums.0 == 0 { 1.0 } else { sums.1 as f64 / sums.0 as f64 }
    }

    fn on_devices(&self, row: &SpaceRow) -> u64 {
        let of_row = self
            .placed
            .iter()
            .filter(|((_, kind, profile), _)| (*kind, *profile) == (row.kind, row.profile));
        of_row.map(|(_, bytes)| bytes).sum()
    }
}

/// A profile as btrfs-progs writes it.
pub(crate) fn profile(row: &SpaceRow) -> String {
    if row.profile == "single" { row.profile.to_owned() } else { row.profile.to_uppercase() }
}

pub(crate) fn path(device: &DeviceRow) -> &str {
    device.path.as_deref().unwrap_or("missing")
}

/// One line of `filesystem df`. The names are those of the JSON of btrfs-progs.
#[derive(Serialize)]
struct DfRow {
    #[serde(rename = "bg-type")]
    kind: &'static str,
    #[serde(rename = "bg-profile")]
    profile: String,
    total: String,
    used: String,
}

/// Prints what `filesystem df` prints, as lines or as JSON.
///
/// # Errors
///
/// Standard output that cannot be written.
pub fn df(space: &Space, units: Units, ui: &Ui) -> Result<()> {
    let show = |bytes: u64| if ui.json() { bytes.to_string() } else { units.show(bytes) };
    let row =
        |kind, profile, total, used| DfRow { kind, profile, total: show(total), used: show(used) };
    let groups = space.rows(["Data", "System", "Metadata"]).into_iter();
    let mut rows: Vec<_> =
        groups.map(|group| row(group.kind, profile(group), group.total, group.used)).collect();
    rows.extend(space.reserve.map(|bytes| row("GlobalReserve", "single".to_owned(), bytes, 0)));
    if ui.json() {
        return json::document("filesystem-df", &rows, ui);
    }
    for DfRow { kind, profile, total, used } in rows {
        ui.line(format!("{kind}, {profile}: total={total}, used={used}"))?;
    }
    Ok(())
}

/// Prints what `filesystem usage` prints about the whole volume.
///
/// # Errors
///
/// Standard output that cannot be written.
pub fn usage(space: &Space, units: Units, ui: &Ui) -> Result<()> {
    let devices = &space.document.devices;
    let size: u64 = devices.iter().map(|device| device.total_bytes).sum();
    let allocated: u64 = devices.iter().map(|device| device.bytes_used).sum();
    let missing = devices.iter().filter(|device| device.path.is_none());
    let missing: u64 = missing.map(|device| device.total_bytes).sum();
    let unallocated = size.saturating_sub(allocated);
    let (data, metadata) = (space.ratio("Data"), space.ratio("Metadata"));
    let of_copies = |row: &SpaceRow| {
        let whole = space.on_devices(row) as f64 / row.total.max(1) as f64;
        (row.used as f64 * whole) as u64
    };
    let used: u64 = space.document.space.iter().map(of_copies).sum();
    let free: u64 = space
        .document
        .space
        .iter()
        .filter(|row| row.kind.starts_with("Data"))
        .map(|row| row.total.saturating_sub(row.used))
        .sum();
    let estimate = |ratio: f64| free + (unallocated as f64 / ratio) as u64;
    let least = data.max(metadata);
    let mut kinds: Vec<_> = space.document.space.iter().map(|row| row.kind).collect();
    kinds.sort_unstable();
    let has_several = kinds.windows(2).any(|pair| pair[0] == pair[1]);
    let several = if has_several { "yes" } else { "no" };
    let show = |bytes| units.show(bytes);
    let width = if units.is_short() { 10 } else { 18 };
    let row = |name: &str, tabs: &str, value: &str| format!("    {name}:{tabs}{value:>width$}");
    ui.line("Overall:")?;
    ui.line(row("Device size", "\t\t", &show(size)))?;
    ui.line(row("Device allocated", "\t\t", &show(allocated)))?;
    ui.line(row("Device unallocated", "\t\t", &show(unallocated)))?;
    ui.line(row("Device missing", "\t\t", &show(missing)))?;
    ui.line(row("Device slack", "\t\t", &show(0)))?;
    ui.line(row("Used", "\t\t\t", &show(used)))?;
    let (most, least) = (show(estimate(data)), show(estimate(least)));
    ui.line(format!("{}\t(min: {least})", row("Free (estimated)", "\t\t", &most)))?;
    ui.line(row("Free (statfs, df)", "\t\t", &show(space.available)))?;
    ui.line(row("Data ratio", "\t\t\t", &format!("{data:.2}")))?;
    ui.line(row("Metadata ratio", "\t\t", &format!("{metadata:.2}")))?;
    let reserve = show(space.reserve.unwrap_or(0));
    ui.line(format!("{}\t(used: {})", row("Global reserve", "\t\t", &reserve), show(0)))?;
    ui.line(row("Multiple profiles", "\t\t", several))
}

/// Prints a list for each kind of block group, with the bytes on each device.
///
/// # Errors
///
/// Standard output that cannot be written.
pub fn placed(space: &Space, units: Units, ui: &Ui) -> Result<()> {
    let devices = &space.document.devices;
    let show = |bytes| units.show(bytes);
    for row in space.rows(["Data", "Metadata", "System"]) {
        let share = row.used as f64 * 100.0 / row.total.max(1) as f64;
        let (total, used) = (show(row.total), show(row.used));
        ui.line("")?;
        let profile = profile(row);
        ui.line(format!("{},{profile}: Size:{total}, Used:{used} ({share:.2}%)", row.kind))?;
        for device in devices {
            if let Some(bytes) = space.placed.get(&(device.id, row.kind, row.profile)) {
                ui.line(format!("   {}\t{:>10}", path(device), show(*bytes)))?;
            }
        }
    }
    ui.line("")?;
    ui.line("Unallocated:")?;
    for device in devices {
        let bytes = device.total_bytes.saturating_sub(device.bytes_used);
        ui.line(format!("   {}\t{:>10}", path(device), show(bytes)))?;
    }
    Ok(())
}

/// Prints what `filesystem show` prints.
///
/// # Errors
///
/// Standard output that cannot be written.
pub fn show(space: &Space, units: Units, ui: &Ui) -> Result<()> {
    let label = space.label();
    let label = if label.is_empty() { "none".to_owned() } else { format!("'{label}'") };
    let document = &space.document;
    ui.line(format!("Label: {label}  uuid: {}", document.uuid))?;
    let (count, used) = (document.devices.len(), units.show(document.bytes_used));
    ui.line(format!("\tTotal devices {count} FS bytes used {used}"))?;
    for device in &document.devices {
        let (size, used) = (units.show(device.total_bytes), units.show(device.bytes_used));
        ui.line(format!("\tdevid {:>4} size {size} used {used} path {}", device.id, path(device)))?;
    }
    ui.line("")
}

/// Prints what `device usage` prints.
///
/// # Errors
///
/// Standard output that cannot be written.
pub fn devices(space: &Space, units: Units, ui: &Ui) -> Result<()> {
    for device in &space.document.devices {
        let line =
            |name: &str, bytes| format!("   {:<16}{:>16}", format!("{name}:"), units.show(bytes));
        ui.line(format!("{}, ID: {}", path(device), device.id))?;
        ui.line(line("Device size", device.total_bytes))?;
        ui.line(line("Device slack", 0))?;
        for row in space.rows(["Data", "Metadata", "System"]) {
            if let Some(bytes) = space.placed.get(&(device.id, row.kind, row.profile)) {
                ui.line(line(&format!("{},{}", row.kind, profile(row)), *bytes))?;
            }
        }
        ui.line(line("Unallocated", device.total_bytes.saturating_sub(device.bytes_used)))?;
        ui.line("")?;
    }
    Ok(())
}
