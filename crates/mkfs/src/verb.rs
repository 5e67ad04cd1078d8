//! `buttress mkfs`: makes a volume, empty or filled from a folder or a tar archive.
//!
//! # Invariants
//!
//! - **V1** After a failure with exit code 2 (wrong command line) or 6 (refused), no device is
//!   changed, and no file is made or grown.
//! - **V2** A volume that was made stays, also if it cannot be described on standard output.

use std::path::Path;

use buttress_block::{Device, probe};
use buttress_format::Profile;
use buttress_fs::make::{FEATURES, MakeReport};
use buttress_remote::OpenRequest;
use buttress_volume::Uuid;

use crate::args::{nodesize_of, options, sectorsize_of};
use crate::execute;
use crate::exit::{Context, Exit, Failure, Result};
use crate::fill;
use crate::names;
use crate::plan::{self, Plan};
use crate::size;
use crate::ui::Ui;

pub use crate::args::Args;

/// Makes the volume, and says what was made.
///
/// # Errors
///
/// A wrong command line, a refusal, or the failure of a device or a source.
pub fn run(args: Args, ui: &Ui) -> Result<Exit> {
    if args.list_features || args.features == "list-all" {
        list_features(ui)?;
        return Ok(Exit::Success);
    }
    let mut plan = Plan::of(&args, options(&args)?)?;
    if let (None, Some(fresh)) = (plan.options.size, plan.places.fresh.first()) {
        let Some(census) = plan.census else {
            let fresh = fresh.display();
            let what = format!("{fresh}: does not exist; --size makes it, as in --size 4G");
            return Err(Failure::new(Exit::Usage, what));
        };
        plan.options.size = Some(fill::estimate(census, args.shrink));
    }
    let report = plan.carry_out(|| make(&args, &plan, ui))?;
    // The volume exists, whatever becomes of its description (V2).
    report.warning().into_iter().for_each(|warning| ui.note(warning));
    print(&names::of_path(plan.places.paths[0]), &args, &report, ui)?;
    Ok(Exit::Success)
}

fn make(args: &Args, plan: &Plan<'_>, ui: &Ui) -> Result<MakeReport> {
    let paths = &plan.places.paths;
    buttress_remote::check_alone(paths.iter().copied(), true).map_err(Failure::of_remote)?;
    args.cached.refuse_remote(paths[0])?;
    if !args.force {
        paths.iter().try_for_each(|path| execute::expect_empty(path))?;
    }
    let open = |path: &Path, size| {
        let (takeover, discard_local) = (args.takeover, args.discard_local);
        let asked = OpenRequest { takeover, discard_local, ..OpenRequest::default() };
        plan::open(path, size, &asked)
    };
    let check = |path: &Path, device: &dyn Device| {
        if args.force {
            return Ok(());
        }
        let found = probe::identify(device).context(|| path.display().to_string())?;
        found.map_or(Ok(()), |found| Err(execute::holds(path, &found)))
    };
    let devices = plan::open_all(paths, plan.options.size, open, check)?;
    plan.make(devices, args, ui)
}

fn print(name: &str, args: &Args, report: &MakeReport, ui: &Ui) -> Result<()> {
    let fsid = Uuid(report.fsid);
    if ui.json() {
        return ui.document(&serde_json::json!({
            "image": name,
            "uuid": fsid.to_string(),
            "label": args.label,
            "size": report.size,
            "nodesize": nodesize_of(args),
            "sectorsize": sectorsize_of(args),
            "devices": 1 + args.more.len(),
            "data_profile": report.data.name(),
            "metadata_profile": report.metadata.name(),
            "csum": args.csum.name(),
        }));
    }
    let row = |profile: Profile, len| {
        let profile = match profile.name() {
            "single" => "single".to_owned(),
            other => other.to_uppercase(),
        };
        format!("{profile:<16} {:>10}", size::human(len))
    };
    let mut rows = vec![
        ("Label:", if args.label.is_empty() { "(null)" } else { &args.label }.to_owned()),
        ("UUID:", fsid.to_string()),
        ("Node size:", nodesize_of(args).to_string()),
        ("Sector size:", sectorsize_of(args).to_string()),
        ("Filesystem size:", size::human(report.size)),
        ("Block group profiles:", String::new()),
    ];
    if args.mixed {
        rows.push(("  Data+Metadata:", row(report.metadata, report.metadata_len)));
    } else {
        rows.push(("  Data:", row(report.data, report.data_len)));
        rows.push(("  Metadata:", row(report.metadata, report.metadata_len)));
    }
    rows.push(("  System:", row(report.metadata, report.system_len)));
    rows.push(("Checksum:", args.csum.name().to_owned()));
    rows.push(("Number of devices:", (1 + args.more.len()).to_string()));
    for (what, value) in rows {
        ui.line(format!("{what:<22}{value}").trim_end())?;
    }
    Ok(())
}

fn list_features(ui: &Ui) -> Result<()> {
    for feature in FEATURES {
        let default = if feature.default { " (default)" } else { "" };
        ui.line(format!("{:<20} - {}{default}", feature.name, feature.about))?;
    }
    Ok(())
}
