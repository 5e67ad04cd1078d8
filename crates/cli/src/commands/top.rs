//! `buttress top`: running mounts and servers on the whole screen.
//!
//! # What must hold
//!
//! - When the program ends, by a key or by a failure, the terminal is as it was before.
//! - All figures on a screen come from the same query of the servers.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use buttress_watch::screen::{self, Next, View};
use jiff::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;

use crate::commands::stats;
use crate::exit::{Context, Exit, Failure, Result};
use crate::live::{self, Answer};
use crate::output;
use crate::ui::Ui;

/// Seconds between two updates of the screen.
const DELAYS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory on a mount, an image that is mounted or served, or its cache. The default is all
    /// mounts and servers of this user.
    #[arg(value_name = "PLACE")]
    place: Option<PathBuf>,
    /// Seconds between two updates of the screen.
    #[arg(long, short, value_name = "SECONDS", default_value_t = 1.0)]
    delay: f64,
    /// Print the screen as text, and take no keys. This is the default if the output is no
    /// terminal.
    #[arg(long, short)]
    batch: bool,
    /// Number of screens, with --batch or --output.
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 1)]
    iterations: u32,
    /// Write the last screen to this file instead of printing it: a drawing if its name ends with
    /// .svg, otherwise text.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Columns of a screen that is printed or written.
    #[arg(long, value_name = "COUNT", default_value_t = 120, value_parser = clap::value_parser!(u16).range(20..=500))]
    columns: u16,
    /// Lines of a screen that is printed or written.
    #[arg(long, value_name = "COUNT", default_value_t = 40, value_parser = clap::value_parser!(u16).range(8..=500))]
    lines: u16,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Exit> {
    if ui.json() {
        let hint = "top draws for people: `buttress --json stats --watch` prints the same figures";
        return Err(Failure::new(Exit::Usage, hint));
    }
    if !DELAYS.contains(&args.delay) {
        return Err(Failure::new(Exit::Usage, "--delay: 0.1 to 3600 seconds"));
    }
    if args.batch || args.output.is_some() || !std::io::stdout().is_terminal() {
        print(args, ui)
    } else {
        watch(args)
    }
}

/// The answers of the servers that the arguments name.
fn answers(place: Option<&Path>) -> Result<Vec<Answer>> {
    Ok(match place {
        Some(place) => vec![live::must_find(place)?.1],
        None => live::all()?.into_iter().map(|(_, answer)| answer).collect(),
    })
}

/// Prints screens, or writes the last screen to a file.
fn print(args: &Args, ui: &Ui) -> Result<Exit> {
    let mut view = View::new(args.delay);
    view.take(Instant::now(), answers(args.place.as_deref())?);
    let mut cells = Buffer::default();
    for _ in 0..args.iterations.max(1) {
        std::thread::sleep(Duration::from_secs_f64(args.delay));
        view.take(Instant::now(), answers(args.place.as_deref())?);
        let area = Rect::new(0, 0, args.columns, args.lines);
        cells = Buffer::empty(area);
        screen::draw(&view, area, &mut cells);
        if args.output.is_none() {
            ui.line(screen::text(&cells).trim_end())?;
        }
    }
    if let Some(output) = &args.output {
        let is_drawing = output.extension().is_some_and(|extension| extension == "svg");
        let text = if is_drawing { screen::svg(&cells) } else { screen::text(&cells) };
        output::write(output, text.as_bytes())?;
    }
    Ok(Exit::Success)
}

/// Shows the screen until a key ends it.
fn watch(args: &Args) -> Result<Exit> {
    let mut view = View::new(args.delay);
    // A place that does not exist is reported before the screen changes.
    view.take(Instant::now(), answers(args.place.as_deref())?);
    let mut terminal = ratatui::try_init().context(|| "the terminal")?;
    let watched = (|| {
        let mut seen = Instant::now();
        loop {
            terminal
                .draw(|frame| screen::draw(&view, frame.area(), frame.buffer_mut()))
                .context(|| "the terminal")?;
            let due = seen + Duration::from_secs_f64(view.delay());
            let left = due.saturating_duration_since(Instant::now());
            if event::poll(left).context(|| "the keyboard")? {
                let Event::Key(key) = event::read().context(|| "the keyboard")? else { continue };
                let is_end =
                    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
                if key.kind != KeyEventKind::Press {
                    continue;
                }
                match view.key(key.code) {
                    _ if is_end => return Ok(Exit::Success),
                    Next::Go => {}
                    Next::Quit => return Ok(Exit::Success),
                    Next::Save => {
                        let size = terminal.size().context(|| "the terminal")?;
                        let said = save(&view, Rect::new(0, 0, size.width, size.height));
                        view.say(said);
                    }
                    Next::Pace(slower) => {
                        let delay = if slower { view.delay() * 2.0 } else { view.delay() / 2.0 };
                        view.set_delay(delay.clamp(*DELAYS.start(), *DELAYS.end()));
                    }
                }
                continue;
            }
            seen = Instant::now();
            match answers(args.place.as_deref()) {
                Ok(answers) => view.take(seen, answers),
                // The server ended. Its last figures stay on the screen.
                Err(failure) => view.fail(failure.to_string()),
            }
        }
    })();
    // The program ends, so a failure of this call needs no action.
    let _ = ratatui::try_restore();
    watched
}

/// Writes the screen as a drawing, and its figures as JSON. Returns a line with the names of the
/// files, or with the error.
fn save(view: &View, area: Rect) -> String {
    let name = format!("buttress-top-{}", Timestamp::now().strftime("%Y%m%d-%H%M%SZ"));
    let mut cells = Buffer::empty(area);
    screen::draw(view, area, &mut cells);
    let documents = view.servers().iter().map(|server| stats::document(server.answer()));
    let json = serde_json::Value::Array(documents.collect());
    let (svg_file, json_file) = (format!("{name}.svg"), format!("{name}.json"));
    let written = std::fs::write(&svg_file, screen::svg(&cells))
        .and_then(|()| std::fs::write(&json_file, format!("{json:#}\n")));
    match written {
        Ok(()) => format!("wrote {svg_file} and {json_file}"),
        Err(error) => format!("{name}: {error}"),
    }
}
