//! `btrfs filesystem resize`: gives a device another size.

use std::path::PathBuf;

use buttress_control::size;
use serde_json::Value;

use crate::client;
use crate::exit::{Exit, Failure, Result};
use crate::image::Devices;
use crate::inspect::Inspect;
use crate::order::Order;
use crate::ui::Ui;
use crate::units::Units;
use crate::usage;

/// The command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Accepted for scripts. Work on the whole volume goes on beside other such work, in turns.
    #[arg(long)]
    enqueue: bool,
    /// The new size: 4G, or +1G and -1G to change it by that much, or max for the whole device. For
    /// another device than the first, put its number in front, as in 2:max. The word cancel stops
    /// a running resize.
    #[arg(value_name = "[DEVID:]SIZE", allow_hyphen_values = true)]
    size: String,
    /// The volume, or a folder of its mount. To grow an image file, make the file longer first.
    place: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

/// What Linux says of work that was cancelled.
pub const CANCELED: &str = "Operation canceled";

/// What Linux says to a request to cancel work. `told` is the answer to the order.
#[must_use]
pub fn canceled(told: &Value) -> &'static str {
    match (told["canceled"] == true, told["other_work"] == true) {
        (true, _) => CANCELED,
        (false, true) => "Operation now in progress",
        (false, false) => "Transport endpoint is not connected",
    }
}

/// The size that a command line asks for.
enum Wanted {
    Max,
    Whole(u64),
    More(u64),
    Less(u64),
}

impl Wanted {
    fn parse(text: &str) -> Option<Self> {
        if text == "max" {
            return Some(Self::Max);
        }
        let (make, number): (fn(u64) -> Self, _) = match text.as_bytes().first()? {
            b'+' => (Self::More, &text[1..]),
            b'-' => (Self::Less, &text[1..]),
            _ => (Self::Whole, text),
        };
        size::parse(number).ok().map(make)
    }
}

/// Resizes a device, and tells its old and its new size.
///
/// # Errors
///
/// A volume that cannot be opened or resized.
pub fn run(args: &Args, ui: &Ui) -> Result<Exit> {
    let (id, size) = args.size.split_once(':').unwrap_or(("1", &args.size));
    // As in btrfs-progs, a word that is no number is device 0, which does not exist.
    let id: u64 = id.parse().unwrap_or(0);
    let unable = |before: &str, why: &str| {
        let place = args.place.display();
        Failure::new(Exit::Failure, format!("{before}unable to resize '{place}': {why}"))
    };
    if size == "cancel" {
        ui.line("Request to cancel resize")?;
        if args.size != size {
            return Err(unable("", "Invalid argument"));
        }
        let told = client::run(&Order::ResizeCancel, &args.place, &args.devices, "resize", ui)?;
        // As on Linux, the request itself fails in any case.
        return Err(unable("", canceled(&told)));
    }
    let wanted = Wanted::parse(size)
        .ok_or_else(|| Failure::new(Exit::Failure, format!("size value '{size}' is invalid")))?;
    let inspect = if args.devices.devices.is_empty() {
        usage::inspect(&args.place)?
    } else {
        Inspect::open_quietly(&args.place, &args.devices)?
    };
    let Some(item) = inspect.chunks.devices.iter().find(|item| item.devid.0 == id) else {
        let why = if id == 0 { "Invalid argument" } else { "No such device" };
        return Err(unable(&format!("cannot find devid: {id}\nERROR: "), why));
    };
    let device = inspect.volume.device(item.devid).map(|device| device.device.name());
    let device = device.unwrap_or_else(|| "missing".to_owned());
    let (from, sector) = (item.total_bytes, u64::from(inspect.superblock.sectorsize));
    drop(inspect);
    let show = |bytes: u64| Units::default().show(bytes);
    let to = match wanted {
        Wanted::Max => None,
        Wanted::Whole(bytes) => Some(bytes),
        Wanted::More(bytes) => Some(from.saturating_add(bytes)),
        Wanted::Less(bytes) if bytes > from => {
            let (from, bytes) = (show(from), show(bytes));
            let before = format!("current size is {from} which is smaller than {bytes}\nERROR: ");
            return Err(unable(&before, "Invalid argument"));
        }
        Wanted::Less(bytes) => Some(from - bytes),
    };
    let to = to.map(|to| to / sector * sector);
    let order = Order::Resize { size: format!("{id}:{size}") };
    let done = client::run(&order, &args.place, &args.devices, "resize", ui);
    let new = to.map_or_else(|| "max".to_owned(), show);
    ui.line(format!("Resize device id {id} ({device}) from {} to {new}", show(from)))?;
    match done {
        Ok(_) => Ok(Exit::Success),
        Err(error) if error.exit == Exit::NoSpace && to.is_some_and(|to| to > from) => {
            Err(unable("", "no enough free space"))
        }
        Err(error) if error.is_stopped() => Err(unable("", CANCELED)),
        Err(error) => Err(unable("", &error.to_string())),
    }
}
