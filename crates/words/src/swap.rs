//! `btrfs filesystem mkswapfile` and `btrfs inspect-internal map-swapfile`.

use std::ffi::OsString;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use buttress_control::named::Named;
use buttress_control::size;
use buttress_format::{BlockGroupFlags, Chunk, InodeFlags};
use buttress_survey::{FileParts, Form};
use uuid::{Builder, Uuid, Variant, Version};

use crate::client;
use crate::execute::{SWAP_PAGE, SWAP_SIZE_MIN};
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::order::{Order, SurveyRequest};
use crate::ui::Ui;
use crate::usage;

/// The options of `mkswapfile`.
#[derive(Debug, clap::Args)]
pub struct Make {
    /// The size of the file. The smallest is 40K.
    #[arg(short, long, value_name = "SIZE", default_value = "2G", value_parser = size::parse)]
    size: u64,
    /// The UUID of the swap space: a UUID, clear for zeros, random, or time for one that is made
    /// from the time.
    #[arg(short = 'U', long, value_name = "UUID", default_value = "random")]
    uuid: String,
    /// The new file, on a mount or as IMG:/path.
    file: OsString,
}

/// The options of `map-swapfile`.
#[derive(Debug, clap::Args)]
pub struct Map {
    /// Print only the number for `/sys/power/resume_offset`.
    #[arg(short, long)]
    resume_offset: bool,
    /// The file, on a mount or as IMG:/path.
    file: OsString,
}

fn failed<T>(what: impl Into<String>) -> Result<T> {
    Err(Failure::new(Exit::Failure, what))
}

/// Makes a file for swap space.
///
/// # Errors
///
/// A file that exists, a size that is too small, a volume that is full.
pub fn make(args: &Make, ui: &Ui) -> Result<()> {
    let uuid = uuid_of(&args.uuid)?.into_bytes();
    if args.size < SWAP_SIZE_MIN {
        return failed("swapfile needs to be at least 40 KiB");
    }
    let size = args.size - args.size % SWAP_PAGE;
    let Named { volume, spot: at, .. } = Named::parse(&args.file)?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let order = Order::SwapFile { at, uid, gid, size, uuid };
    client::run(&order, &volume, &Devices::default(), "mkswapfile", ui)?;
    let name = Path::new(&args.file).display();
    ui.line(format!("create swapfile {name} size {} ({size})", size::human(size)))
}

fn uuid_of(text: &str) -> Result<Uuid> {
    match text {
        "clear" => Ok(Uuid::nil()),
        "random" => Ok(Uuid::new_v4()),
        "time" => Ok(of_time()),
        text => Uuid::try_parse(text).or_else(|_| failed(format!("UUID not recognized: {text}"))),
    }
}

/// A version-1 identifier with a random number in place of a network address.
fn of_time() -> Uuid {
    /// From the first day of the Gregorian calendar to 1970, in units of 100 ns.
    const BEFORE_1970: u128 = 0x01B2_1DD2_1381_4000;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = since.as_nanos() / 100 + BEFORE_1970;
    let [.., a, b, c, d, e, f, g, h] = *Uuid::new_v4().as_bytes();
    // This bit marks a number that is no address of a network card.
    let rest = [a, b, c | 1, d, e, f, g, h];
    let (low, middle, high) = (time as u32, (time >> 32) as u16, (time >> 48) as u16);
    let made = Builder::from_fields(low, middle, high, &rest);
    made.with_version(Version::Mac).with_variant(Variant::RFC4122).into_uuid()
}

/// Prints where a file for swap space begins on its device.
///
/// # Errors
///
/// A file that the kernel would refuse as swap space: the message has the reason.
pub fn map(args: &Map, ui: &Ui) -> Result<()> {
    let Named { volume, spot: at, .. } = Named::parse(&args.file)?;
    let order = Order::Survey { at, request: SurveyRequest::Parts };
    let found = client::run(&order, &volume, &Devices::default(), "map-swapfile", ui)?;
    let found: Option<FileParts> = serde_json::from_value(found).context(|| "the answer")?;
    let Some(file) = found else { return failed("the file is not committed") };
    let inspect = usage::inspect(&volume)?;
    let start = first_byte(&file, &inspect.chunks.chunks)?;
    let offset = start / SWAP_PAGE;
    if args.resume_offset {
        return ui.line(offset.to_string());
    }
    ui.line(format!("Physical start: {start:>12}"))?;
    ui.line(format!("Resume offset:  {offset:>12}"))
}

/// Returns the address of the first byte of a file on its device.
fn first_byte(file: &FileParts, chunks: &[Chunk]) -> Result<u64> {
    if file.flags & InodeFlags::NODATACOW == 0 {
        return failed("file is not NOCOW");
    }
    let (mut end, mut first) = (0, None);
    for part in &file.parts {
        let address = match part.form {
            Form::Inline => return failed("file with inline extent"),
            Form::Compressed => return failed("file with compressed extent"),
            Form::Plain(address) if part.at == end => address,
            Form::Plain(_) | Form::Hole => return failed("file with holes"),
        };
        end = end.saturating_add(part.len);
        let holds = |chunk: &&Chunk| {
            address.checked_sub(chunk.logical.0).is_some_and(|within| within < chunk.len)
        };
        let Some(chunk) = chunks.iter().find(holds) else {
            return failed(format!("no chunk has the address {address}"));
        };
        let profile = chunk.flags.profile();
        if profile != BlockGroupFlags::default() {
            return failed(format!("unsupported block group profile: {}", profile.0));
        }
        let Some(stripe) = chunk.stripes.first() else {
            return failed(format!("the chunk of the address {address} has no device"));
        };
        let (device, _) =
            *first.get_or_insert((stripe.device, stripe.offset + (address - chunk.logical.0)));
        if device != stripe.device {
            return failed("file stored on multiple devices");
        }
    }
    match first {
        Some((_, start)) if end >= file.size => Ok(start),
        _ => failed("file with holes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words for a UUID, and a UUID itself.
    #[test]
    fn uuids_have_names() {
        let text = "11111111-2222-3333-4444-555555555555";
        assert_eq!(uuid_of(text).expect("a UUID").to_string(), text);
        assert!(uuid_of("clear").expect("a word").is_nil());
        assert_eq!(uuid_of("random").expect("a word").get_version_num(), 4);
        let made = uuid_of("time").expect("a word");
        assert_eq!((made.get_version_num(), made.get_variant()), (1, Variant::RFC4122));
        assert!(uuid_of("junk").is_err());
    }
}
