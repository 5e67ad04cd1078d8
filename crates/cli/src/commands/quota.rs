//! `buttress quota`, and `btrfs quota`: turns quotas of subvolumes on and off.

use std::ffi::OsString;
use std::thread;
use std::time::Duration;

use buttress_control::named::Named;
use buttress_control::order::{Order, QuotaAct, Quotas};
use serde_json::{Value, json};

use crate::client;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::ui::Ui;

/// The time between two checks whether a rescan has ended.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Begin to count the space that subvolumes use.
    Enable {
        /// Count each extent only for the subvolume that created it. Counting takes less time, and
        /// covers only extents that are created from now on. Needs Linux 6.7.
        #[arg(short, long)]
        simple: bool,
        #[command(flatten)]
        at: At,
    },
    /// Stop counting, and remove all groups and limits.
    Disable {
        #[command(flatten)]
        at: At,
    },
    /// Count everything again. Simple quotas cannot be rescanned.
    Rescan {
        /// Show whether a rescan is running.
        #[arg(short, long)]
        status: bool,
        /// Wait until the rescan has ended. This is always done.
        #[arg(short, long)]
        wait: bool,
        /// Begin no rescan, and wait for a running one.
        #[arg(short = 'W', long)]
        wait_norescan: bool,
        /// Print nothing.
        #[arg(short, long)]
        quiet: bool,
        #[command(flatten)]
        at: At,
    },
    /// Show whether quotas are on, and whether they are simple.
    Status {
        #[command(flatten)]
        at: At,
    },
}

/// A volume.
#[derive(Debug, clap::Args)]
pub(crate) struct At {
    /// The volume: an image, a block device, or a path on a mount.
    #[arg(value_name = "IMG | PATH")]
    place: OsString,
    #[command(flatten)]
    devices: Devices,
}

impl At {
    /// A volume at a place, with its other devices.
    pub(super) fn of(place: OsString, devices: Devices) -> Self {
        Self { place, devices }
    }

    /// Carries out an order about quotas of the volume.
    pub(super) fn order(&self, act: impl FnOnce(&Named) -> QuotaAct, ui: &Ui) -> Result<Value> {
        let named = Named::parse(&self.place)?;
        let order = Order::Quota(act(&named));
        client::run(&order, &named.volume, &self.devices, "quotas", ui)
    }

    /// Returns the quotas of the volume.
    pub(super) fn show(&self, act: impl FnOnce(&Named) -> QuotaAct, ui: &Ui) -> Result<Quotas> {
        serde_json::from_value(self.order(act, ui)?).context(|| "the answer")
    }

    /// Returns the quotas of the volume. Fails if it has none.
    pub(super) fn must_show(&self, ui: &Ui) -> Result<Quotas> {
        let found = self.show(|_| QuotaAct::Show, ui)?;
        if found.enabled { Ok(found) } else { Err(self.none()) }
    }

    /// The failure for a volume without quotas.
    pub(super) fn none(&self) -> Failure {
        let place = self.place.to_string_lossy();
        Failure::new(Exit::Failure, format!("{place}: quotas are not enabled"))
    }
}

pub(crate) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Enable { simple, at } => drop(at.order(|_| QuotaAct::Enable { simple }, ui)?),
        Verb::Disable { at } => drop(at.order(|_| QuotaAct::Disable, ui)?),
        Verb::Rescan { status: true, at, .. } => {
            let is_running = at.must_show(ui)?.rescan_running;
            let what = match is_running {
                true => "rescan operation running",
                false => "no rescan operation in progress",
            };
            say(ui, &json!({ "rescan_running": is_running }), what)?;
        }
        Verb::Rescan { wait_norescan: true, at, .. } => {
            while at.must_show(ui)?.rescan_running {
                thread::sleep(LOOK_PERIOD);
            }
            if ui.json() {
                ui.document(&json!({ "rescan_running": false }))?;
            }
        }
        Verb::Rescan { wait, quiet, at, .. } => {
            at.order(|_| QuotaAct::Rescan, ui)?;
            if ui.json() || !quiet && !wait {
                say(ui, &json!({ "rescanned": true }), "quota rescan started")?;
            }
        }
        Verb::Status { at } => status(&at, ui)?,
    }
    Ok(Exit::Success)
}

/// Prints a document or a line.
pub(super) fn say(ui: &Ui, document: &Value, text: &str) -> Result<()> {
    if ui.json() { ui.document(document) } else { ui.line(text) }
}

fn status(at: &At, ui: &Ui) -> Result<()> {
    let found = at.show(|_| QuotaAct::Show, ui)?;
    if ui.json() {
        return ui.document(&json!({
            "enabled": found.enabled,
            "mode": found.enabled.then_some(if found.simple { "squota" } else { "qgroup" }),
            "inconsistent": found.inconsistent,
            "groups": found.groups.len(),
        }));
    }
    let yes = |is| if is { "yes" } else { "no" };
    ui.line(format!("Quotas on {}:", at.place.to_string_lossy()))?;
    ui.line(format!("  Enabled:                 {}", yes(found.enabled)))?;
    if !found.enabled {
        return Ok(());
    }
    let mode = if found.simple { "squota (simple accounting)" } else { "qgroup (full accounting)" };
    ui.line(format!("  Mode:                    {mode}"))?;
    ui.line(format!("  Inconsistent:            {}", yes(found.inconsistent)))?;
    ui.line(format!("  Total count:             {}", found.groups.len()))?;
    let level = |id: &str| id.split('/').next().and_then(|level| level.parse::<u32>().ok());
    let mut counts = std::collections::BTreeMap::<u32, usize>::new();
    for level in found.groups.iter().filter_map(|group| level(&group.qgroupid)) {
        *counts.entry(level).or_default() += 1;
    }
    for (level, count) in counts {
        ui.line(format!("  {:<25}{count}", format!("Level {level}:")))?;
    }
    Ok(())
}
