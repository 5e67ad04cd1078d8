//! `buttress balance`: moves what is in block groups to others.

use std::path::PathBuf;

use buttress_format::{DeviceId, Profile};
use buttress_fs::{BalanceOptions, BalanceProgress, Filter};

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::size;
use crate::ui::Ui;

/// What to do about a balance.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Move what is in the chosen block groups; in all of them when nothing is chosen.
    Start(Start),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// The volume, which nobody may have mounted.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
    /// Data groups: filters separated by commas, such as usage=50, profiles=raid1|dup, devid=1,
    /// vrange=A..B, drange=A..B, stripes=A..B, limit=N, convert=PROFILE, soft; or `all`.
    #[arg(short, value_name = "FILTERS")]
    data: Option<String>,
    /// Metadata groups, and system groups with them unless -s is given.
    #[arg(short, value_name = "FILTERS")]
    metadata: Option<String>,
    /// System groups.
    #[arg(short, value_name = "FILTERS")]
    system: Option<String>,
    /// Move everything, without being asked twice: the default when no filter is given.
    #[arg(long)]
    full_balance: bool,
    /// Let metadata have fewer copies than it has.
    #[arg(long, short)]
    force: bool,
}

pub(crate) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Start(args) => start(&args, ui),
    }
}

fn start(args: &Start, ui: &Ui) -> Result<Exit> {
    let name = args.image.display().to_string();
    let options = options(args)?;
    let fs = image::open(&args.image, &args.devices, Access::Write)?;
    if !args.force {
        refuse_fewer_copies(&fs, &options).context(|| &name)??;
    }
    let mut progress = bar(ui, "balance");
    let done = fs.balance(&options, &mut progress).context(|| &name)?;
    drop(progress);
    image::close(fs, &args.image)?;
    if ui.json() {
        ui.document(&serde_json::json!({
            "completed": done.completed,
            "expected": done.expected,
            "considered": done.considered,
            "moved": done.moved,
        }))?;
    } else {
        let (completed, considered) = (done.completed, done.considered);
        ui.line(format!("Done, had to relocate {completed} out of {considered} chunks"))?;
    }
    Ok(Exit::Success)
}

/// As btrfs-progs: fewer copies of metadata need --force.
fn refuse_fewer_copies(
    fs: &buttress_fs::Filesystem,
    options: &BalanceOptions,
) -> buttress_fs::Result<Result<()>> {
    let target = options.metadata.as_ref().and_then(|filter| filter.convert);
    let Some(target) = target else { return Ok(Ok(())) };
    let now = fs.info()?.usage.kinds.into_iter();
    let now = now.filter(|kind| kind.flags.has(buttress_format::BlockGroupFlags::METADATA));
    let safest = now.filter_map(|kind| Profile::of(kind.flags)).map(|p| p.spread().copies).max();
    if safest.unwrap_or(0) > target.spread().copies {
        let what =
            format!("{target} keeps fewer copies of metadata than there are; --force does it");
        return Ok(Err(Failure::new(Exit::Refused, what)));
    }
    Ok(Ok(()))
}

/// A bar for anything that moves block groups.
pub(crate) fn bar<'u>(
    ui: &'u Ui,
    what: &'static str,
) -> impl FnMut(&BalanceProgress) -> bool + use<'u> {
    let mut bar = None;
    let mut shown = 0;
    move |progress: &BalanceProgress| {
        let bar = bar.get_or_insert_with(|| ui.bytes_bar(what, progress.bytes));
        bar.add(progress.moved.saturating_sub(shown));
        shown = progress.moved;
        bar.message(&format!("{} of {} chunks", progress.completed, progress.expected));
        true
    }
}

fn options(args: &Start) -> Result<BalanceOptions> {
    let parse = |text: &Option<String>| text.as_deref().map(filter).transpose();
    let mut options = BalanceOptions {
        data: parse(&args.data)?,
        metadata: parse(&args.metadata)?,
        system: parse(&args.system)?,
    };
    if options == BalanceOptions::default() {
        return Ok(BalanceOptions::full());
    }
    if args.full_balance {
        let what = "--full-balance and filters exclude each other";
        return Err(Failure::new(Exit::Usage, what));
    }
    if options.system.is_none() {
        options.system.clone_from(&options.metadata);
    }
    Ok(options)
}

/// Reads filters in the words of btrfs-progs.
fn filter(text: &str) -> Result<Filter> {
    let mut filter = Filter::default();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty() && *word != "all") {
        let refuse = |why: &str| Failure::new(Exit::Usage, format!("filter {word:?}: {why}"));
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let number = |text: &str| size::parse(text).map_err(|why| refuse(&why));
        let profile = |text: &str| {
            Profile::parse(text).ok_or_else(|| refuse("single, dup, raid0, raid1, and so on"))
        };
        // A..B, ..B, A.. and, where `alone` says what it means, one number.
        let range = |alone: Option<&dyn Fn(u64) -> (u64, u64)>| match value.split_once("..") {
            Some((low, high)) => Ok((
                if low.is_empty() { 0 } else { number(low)? },
                if high.is_empty() { u64::MAX } else { number(high)? },
            )),
            None => match alone {
                Some(alone) => Ok(alone(number(value)?)),
                None => Err(refuse("a range, as in 1g..2g")),
            },
        };
        match name {
            "profiles" => {
                filter.profiles = Some(value.split('|').map(profile).collect::<Result<_>>()?);
            }
            "usage" => filter.usage = Some(range(Some(&|most| (0, most)))?),
            "devid" => filter.devid = Some(DeviceId(number(value)?)),
            "vrange" => filter.vrange = Some(range(None)?),
            "drange" => filter.drange = Some(range(None)?),
            "stripes" => filter.stripes = Some(range(Some(&|only| (only, only)))?),
            "limit" => filter.limit = Some(range(Some(&|most| (0, most)))?.1),
            "convert" => filter.convert = Some(profile(value)?),
            "soft" => filter.soft = true,
            _ => {
                let known = "profiles, usage, devid, vrange, drange, stripes, limit, convert, soft";
                return Err(refuse(&format!("not known; known are {known}")));
            }
        }
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Filters mean what they mean to btrfs-progs.
    #[test]
    fn filters_parse() {
        let found =
            filter("usage=50,convert=raid1,soft,vrange=1m..,profiles=single|dup").expect("good");
        assert_eq!(found.usage, Some((0, 50)));
        assert_eq!(found.convert, Some(Profile::Raid1));
        assert_eq!(found.vrange, Some((1 << 20, u64::MAX)));
        assert_eq!(found.profiles, Some(vec![Profile::Single, Profile::Dup]));
        assert!(found.soft);
        assert!(filter("usage=x").is_err());
        assert!(filter("colour=red").is_err());
        assert_eq!(filter("all").expect("everything"), Filter::default());
    }
}
