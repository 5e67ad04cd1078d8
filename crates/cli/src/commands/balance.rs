//! `buttress balance`: moves what is in block groups to others.

use std::path::PathBuf;

use buttress_block::{FileDevice, OpenOptions};
use buttress_format::{DeviceId, Profile};
use buttress_fs::{BalanceOptions, BalanceProgress, Filesystem, Filter};
use serde_json::{Value, json};

use crate::closing;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::live;
use crate::order::{self, Order};
use crate::size;
use crate::ui::Ui;

/// What to do about a balance.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Move what is in the chosen block groups; in all of them when nothing is chosen.
    Start(Start),
    /// Go on with a balance that was paused, here or by Linux.
    Resume(Volume),
    /// Have the program that balances a volume stop behind the block group that it is at.
    Pause(Volume),
    /// Forget a balance that was paused; what it moved stays where it is.
    Cancel(Volume),
    /// Tell whether a balance is running or paused, and what it was asked for.
    Status(Volume),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Volume {
    /// The volume, or where this user has it mounted.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// The volume, or where this user has it mounted.
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
        Verb::Resume(args) => resume(&args, ui),
        Verb::Pause(args) => pause(&args, ui),
        Verb::Cancel(args) => cancel(&args, ui),
        Verb::Status(args) => status(&args, ui),
    }
}

fn start(args: &Start, ui: &Ui) -> Result<Exit> {
    let (data, metadata, system) = (&args.data, &args.metadata, &args.system);
    options(data, metadata, system)?;
    if args.full_balance && (data.is_some() || metadata.is_some() || system.is_some()) {
        let what = "--full-balance and filters exclude each other";
        return Err(Failure::new(Exit::Usage, what));
    }
    let order = Order::BalanceStart {
        data: data.clone(),
        metadata: metadata.clone(),
        system: system.clone(),
        force: args.force,
    };
    ended(order::run(&order, &args.image, &args.devices, "balance", ui)?, ui)
}

fn resume(args: &Volume, ui: &Ui) -> Result<Exit> {
    let order = Order::BalanceResume;
    ended(order::run(&order, &args.image, &args.devices, "balance", ui)?, ui)
}

/// What scripts read of a balance.
pub(crate) fn document(done: &BalanceProgress) -> Value {
    json!({
        "completed": done.completed,
        "expected": done.expected,
        "considered": done.considered,
        "moved": done.moved,
        "paused": done.is_paused,
    })
}

fn ended(done: Value, ui: &Ui) -> Result<Exit> {
    let is_paused = done["paused"] == true;
    if ui.json() {
        ui.document(&done)?;
    } else if is_paused {
        let (completed, expected) = (&done["completed"], &done["expected"]);
        ui.line(format!(
            "Paused behind {completed} of {expected} chunks; `balance resume` goes on, `balance cancel` \
             leaves it at that"
        ))?;
    } else {
        let (completed, considered) = (&done["completed"], &done["considered"]);
        ui.line(format!("Done, had to relocate {completed} out of {considered} chunks"))?;
    }
    Ok(if is_paused { Exit::Failure } else { Exit::Success })
}

/// Who has the volume open, if it is a balance.
fn balancer(args: &Volume) -> Result<Option<u32>> {
    if args.image.is_dir() {
        return Err(live::no_image(&args.image));
    }
    let options = OpenOptions { write: true, lock: true, ..OpenOptions::default() };
    closing::until_closed(&args.image);
    let pid = match FileDevice::open(&args.image, options) {
        Err(buttress_block::Error::Locked { pid: Some(pid), .. }) => pid,
        Ok(_) | Err(buttress_block::Error::Looped { .. }) => return Ok(None),
        Err(error) => return Err(Failure::of_device(error)),
    };
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = words.split(|byte| *byte == 0);
    Ok(words.any(|word| word == b"balance").then_some(pid))
}

fn pause(args: &Volume, ui: &Ui) -> Result<Exit> {
    let name = args.image.display().to_string();
    if live::find(&args.image)?.is_some() {
        order::run(&Order::BalancePause, &args.image, &args.devices, "balance", ui)?;
        if !ui.json() {
            ui.line(format!("{name}: the balance is paused"))?;
        }
        return Ok(Exit::Success);
    }
    let pid = balancer(args)?.and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
    let Some(pid) = pid else {
        return Err(Failure::new(Exit::Refused, format!("{name}: no balance is running")));
    };
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)
        .map_err(std::io::Error::from)
        .context(|| &name)?;
    if !ui.json() {
        ui.line(format!("{name}: the balance stops behind the block group that it is at"))?;
    }
    Ok(Exit::Success)
}

fn cancel(args: &Volume, ui: &Ui) -> Result<Exit> {
    order::run(&Order::BalanceCancel, &args.image, &args.devices, "balance", ui)?;
    if !ui.json() {
        let name = args.image.display();
        ui.line(format!("{name}: the balance is forgotten; what it moved stays"))?;
    }
    Ok(Exit::Success)
}

/// The balance of a volume, in the words that scripts read; `elsewhere`: another process balances it.
pub(crate) fn status_of(fs: &Filesystem, elsewhere: bool) -> buttress_fs::Result<Value> {
    let kept = fs.balance_status()?;
    let word = match &kept {
        _ if elsewhere => "running",
        Some(balance) if balance.is_running => "running",
        Some(_) => "paused",
        None => "none",
    };
    let options = kept.iter().map(|balance| &balance.options);
    let kinds = options.flat_map(|options| {
        [("data", &options.data), ("metadata", &options.metadata), ("system", &options.system)]
    });
    let filters: serde_json::Map<_, _> = kinds
        .filter_map(|(kind, filter)| Some((kind.to_owned(), words(filter.as_ref()?).into())))
        .collect();
    let mut told = json!({ "status": word, "filters": filters });
    if let Some(balance) = kept.filter(|balance| balance.is_running) {
        told["progress"] = document(&balance.progress);
    }
    Ok(told)
}

fn status(args: &Volume, ui: &Ui) -> Result<Exit> {
    let name = args.image.display().to_string();
    let told = if live::find(&args.image)?.is_some() {
        order::run(&Order::BalanceStatus, &args.image, &args.devices, "balance", ui)?
    } else {
        let running = balancer(args)?.is_some();
        let fs = image::open(&args.image, &args.devices, Access::Peek)?;
        let told = status_of(&fs, running).context(|| &name)?;
        image::close(fs, &args.image)?;
        told
    };
    if ui.json() {
        ui.document(&told)?;
        return Ok(Exit::Success);
    }
    let is_none = told["status"] == "none";
    match told["status"].as_str().unwrap_or_default() {
        "none" => ui.line(format!("No balance found on {name:?}"))?,
        word => ui.line(format!("Balance on {name:?} is {word}"))?,
    }
    if let Some(progress) = told.get("progress") {
        let (completed, expected) = (&progress["completed"], &progress["expected"]);
        ui.line(format!("{completed} out of about {expected} chunks balanced"))?;
    }
    for (kind, text) in told["filters"].as_object().into_iter().flatten() {
        ui.line(format!("  {kind}: {}", text.as_str().unwrap_or_default()))?;
    }
    // As btrfs-progs: 1 says that there is one.
    Ok(if is_none { Exit::Success } else { Exit::Failure })
}

/// Filters in the words that `balance start` takes.
fn words(filter: &Filter) -> String {
    let range = |name: &str, range: Option<(u64, u64)>| {
        range.map(|(from, to)| match to {
            u64::MAX => format!("{name}={from}.."),
            to => format!("{name}={from}..{to}"),
        })
    };
    let list = |list: &Vec<Profile>| {
        let names: Vec<_> = list.iter().map(|one| one.name().to_ascii_lowercase()).collect();
        format!("profiles={}", names.join("|"))
    };
    let parts = [
        filter.profiles.as_ref().map(list),
        range("usage", filter.usage),
        filter.devid.map(|id| format!("devid={id}")),
        range("vrange", filter.vrange),
        range("drange", filter.drange),
        range("stripes", filter.stripes),
        filter.limit.map(|most| format!("limit={most}")),
        filter.convert.map(|to| format!("convert={}", to.name().to_ascii_lowercase())),
        filter.soft.then(|| "soft".to_owned()),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "all".to_owned() } else { parts.join(",") }
}

/// As btrfs-progs: fewer copies of metadata need --force.
pub(crate) fn refuse_fewer_copies(
    fs: &Filesystem,
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

/// What is asked for, in the words of btrfs-progs; everything when nothing is chosen.
pub(crate) fn options(
    data: &Option<String>,
    metadata: &Option<String>,
    system: &Option<String>,
) -> Result<BalanceOptions> {
    let parse = |text: &Option<String>| text.as_deref().map(filter).transpose();
    let mut options =
        BalanceOptions { data: parse(data)?, metadata: parse(metadata)?, system: parse(system)? };
    if options == BalanceOptions::default() {
        return Ok(BalanceOptions::full());
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
        // And are shown as they are read.
        assert_eq!(filter(&words(&found)).expect("its own words"), found);
        assert_eq!(words(&Filter::default()), "all");
    }
}
