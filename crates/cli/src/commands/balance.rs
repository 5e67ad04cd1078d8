//! `buttress balance`: moves data from some block groups to others.

use std::path::PathBuf;

use buttress_block::{FileDevice, OpenOptions};
use buttress_remote::{host_file, is_remote};
use serde_json::Value;

use crate::background;
use crate::client;
use crate::closing;
use crate::execute;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::live;
use crate::order::Order;
use crate::ui::Ui;

/// The actions on a balance.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Balance the selected block groups, or all of them if no filter is given.
    Start(Start),
    /// Resume a paused balance. Linux may have started it.
    Resume(Volume),
    /// Pause a running balance after its current block group.
    Pause(Volume),
    /// Cancel a paused balance. Data that it has moved stays where it is.
    Cancel(Volume),
    /// Show whether a balance is running or paused, and its filters.
    Status(Volume),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Volume {
    /// The image or block device of the volume, or a directory where this user has mounted it.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// The image or block device of the volume, or a directory where this user has mounted it.
    #[arg(value_name = "IMG")]
    pub(crate) image: PathBuf,
    #[command(flatten)]
    pub(crate) devices: Devices,
    /// Filters for data block groups, separated by commas, or `all`: usage=50, profiles=raid1|dup,
    /// devid=1, vrange=A..B, drange=A..B, stripes=A..B, limit=N, convert=PROFILE, soft.
    #[arg(short, value_name = "FILTERS")]
    pub(crate) data: Option<String>,
    /// Filters for metadata block groups. Without -s, they apply to system block groups as well.
    #[arg(short, value_name = "FILTERS")]
    pub(crate) metadata: Option<String>,
    /// Filters for system block groups.
    #[arg(short, value_name = "FILTERS")]
    pub(crate) system: Option<String>,
    /// Balance all block groups without a question. This is the default if no filter is given.
    #[arg(long)]
    pub(crate) full_balance: bool,
    /// Continue in the background, and return when the work has begun.
    #[arg(long, alias = "bg")]
    pub(crate) background: bool,
    /// Allow fewer copies of metadata than before.
    #[arg(long, short)]
    pub(crate) force: bool,
}

impl Volume {
    pub(crate) fn at(image: PathBuf) -> Self {
        Self { image, devices: Devices::default() }
    }
}

impl Start {
    /// A balance of everything.
    pub(crate) fn of(image: PathBuf) -> Self {
        Self {
            image,
            devices: Devices::default(),
            data: None,
            metadata: None,
            system: None,
            full_balance: false,
            background: false,
            force: false,
        }
    }
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
    execute::balance_options(data, metadata, system)?;
    if args.full_balance && (data.is_some() || metadata.is_some() || system.is_some()) {
        let what = "--full-balance and filters exclude each other";
        return Err(Failure::new(Exit::Usage, what));
    }
    if args.background
        && let Some(pid) = background::begin(ui)?
    {
        return super::scrub::begun(&args.image, "balance", pid, ui);
    }
    let order = Order::BalanceStart {
        data: data.clone(),
        metadata: metadata.clone(),
        system: system.clone(),
        force: args.force,
    };
    ended(client::run(&order, &args.image, &args.devices, "balance", ui)?, ui)
}

/// Gives an order to a balance. Without a balance, the exit code is that of a scrub in this case.
/// Only a failed order asks for the balance: the volume was not opened before, and has its log.
fn run_on_balance(order: &Order, args: &Volume, what: &str, ui: &Ui) -> Result<Value> {
    client::run(order, &args.image, &args.devices, "balance", ui).map_err(|failure| {
        let is_idle = told(args, ui).is_ok_and(|found| found["status"] == "none");
        let what = || format!("{}: no balance to {what}", args.image.display());
        if is_idle { Failure::new(Exit::Usage, what()) } else { failure }
    })
}

fn resume(args: &Volume, ui: &Ui) -> Result<Exit> {
    ended(run_on_balance(&Order::BalanceResume, args, "resume", ui)?, ui)
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

/// How often the search for the process with the lock is repeated, and the time between two
/// searches.
const LOOKS_MAX: u32 = 20;
const LOOK: std::time::Duration = std::time::Duration::from_millis(10);

/// The process that has the volume open, if that process runs a balance.
fn balancer(args: &Volume) -> Result<Option<u32>> {
    if args.image.is_dir() {
        return Err(live::no_image(&args.image));
    }
    if is_remote(&args.image) {
        return Ok(None);
    }
    let options = OpenOptions { write: true, lock: true, ..OpenOptions::default() };
    closing::until_closed(&args.image);
    let mut looks = 0;
    let pid = loop {
        match FileDevice::open(host_file(&args.image), options) {
            Err(buttress_block::Error::Locked { pid: Some(pid), .. }) => break pid,
            // The process may have ended between the attempt to open the volume and the search for
            // the process.
            Err(buttress_block::Error::Locked { pid: None, .. }) if looks < LOOKS_MAX => {
                looks += 1;
                std::thread::sleep(LOOK);
            }
            Ok(_) | Err(buttress_block::Error::Looped { .. }) => return Ok(None),
            Err(error) => return Err(Failure::of_device(error)),
        }
    };
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = words.split(|byte| *byte == 0);
    Ok(words.any(|word| word == b"balance").then_some(pid))
}

fn idle(name: &str) -> Failure {
    Failure::new(Exit::Usage, format!("{name}: no balance is running"))
}

fn pause(args: &Volume, ui: &Ui) -> Result<Exit> {
    let name = args.image.display().to_string();
    if live::find(&args.image)?.is_some() {
        if told(args, ui)?["status"] != "running" {
            return Err(idle(&name));
        }
        client::run(&Order::BalancePause, &args.image, &args.devices, "balance", ui)?;
        if !ui.json() {
            ui.line(format!("{name}: the balance is paused"))?;
        }
        return Ok(Exit::Success);
    }
    let pid = balancer(args)?.and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
    let Some(pid) = pid else { return Err(idle(&name)) };
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)
        .map_err(std::io::Error::from)
        .context(|| &name)?;
    if !ui.json() {
        ui.line(format!("{name}: the balance stops behind the block group that it is at"))?;
    }
    Ok(Exit::Success)
}

fn cancel(args: &Volume, ui: &Ui) -> Result<Exit> {
    run_on_balance(&Order::BalanceCancel, args, "cancel", ui)?;
    if !ui.json() {
        let name = args.image.display();
        ui.line(format!("{name}: the balance is forgotten; what it moved stays"))?;
    }
    Ok(Exit::Success)
}

/// Returns the document about a volume's balance. Its `status` is running, paused or none.
pub(crate) fn told(args: &Volume, ui: &Ui) -> Result<Value> {
    if live::find(&args.image)?.is_some() {
        return client::run(&Order::BalanceStatus, &args.image, &args.devices, "balance", ui);
    }
    let running = balancer(args)?.is_some();
    let fs = image::open(&args.image, &args.devices, Access::Peek)?;
    let told =
        execute::balance_status(&fs, running).context(|| args.image.display().to_string())?;
    image::close(fs, &args.image)?;
    Ok(told)
}

fn status(args: &Volume, ui: &Ui) -> Result<Exit> {
    let name = args.image.display().to_string();
    let told = told(args, ui)?;
    if ui.json() {
        ui.document(&told)?;
        return Ok(Exit::Success);
    }
    let is_none = told["status"] == "none";
    match told["status"].as_str().unwrap_or_default() {
        "none" => ui.line(format!("No balance found on '{name}'"))?,
        word => ui.line(format!("Balance on '{name}' is {word}"))?,
    }
    if let Some(progress) = told.get("progress") {
        let (completed, expected) = (&progress["completed"], &progress["expected"]);
        ui.line(format!("{completed} out of about {expected} chunks balanced"))?;
    }
    for (kind, text) in told["filters"].as_object().into_iter().flatten() {
        ui.line(format!("  {kind}: {}", text.as_str().unwrap_or_default()))?;
    }
    // As in btrfs-progs, status 1 means that there is a balance.
    Ok(if is_none { Exit::Success } else { Exit::Failure })
}
