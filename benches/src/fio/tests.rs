use super::*;

/// The output of fio 3.33 for four jobs that wrote for two seconds. Unused fields are left out.
const ANSWER: &str = r#"note: something that is no JSON
{
  "fio version" : "fio-3.33",
  "jobs" : [
    {
      "jobname" : "j0", "groupid" : 0, "error" : 0, "elapsed" : 3, "job_runtime" : 8000,
      "read" : { "io_bytes" : 0, "bw_bytes" : 0, "runtime" : 0, "total_ios" : 0 },
      "write" : {
        "io_bytes" : 10566266880, "io_kbytes" : 10318620, "bw_bytes" : 5280493193, "runtime" : 2001,
        "total_ios" : 2579655,
        "clat_ns" : {
          "min" : 681, "max" : 80949450, "mean" : 1854.122838, "stddev" : 118814.833255, "N" : 2579655,
          "percentile" : {
            "1.000000" : 708, "50.000000" : 892, "99.000000" : 1256, "99.500000" : 1336,
            "99.900000" : 7072, "99.990000" : 4046848
          }
        }
      }
    }
  ],
  "disk_util" : []
}
"#;

/// Two lines with the same time, then no line for half a second. A line has the requests since the
/// previous line.
const LOG: &str = "\
20, 1, 4096, 0, 0, 7362, 800, 3, 1, 0
100, 1, 4096, 0, 0, 1800, 0, 0, 0, 0
100, 1, 4096, 0, 0, 34, 0, 0, 0, 0
600, 1, 4096, 0, 0, 0, 0, 0, 0, 5
650, 1, 4096, 0, 0, 1000, 0, 0, 0, 0
";

/// The figures of the group of jobs are found after the notes, in bytes and seconds.
#[test]
fn answers_are_read() {
    let seen = parse(ANSWER.as_bytes(), "write").expect("it is one");
    assert_eq!((seen.bytes, seen.seconds), (10_566_266_880.0, 2.001));
    let times = [seen.p50, seen.p99, seen.p999, seen.longest];
    let nanos: Vec<u64> = times.iter().map(|time| (time * 1e9).round() as u64).collect();
    assert_eq!(nanos, [892, 1256, 7072, 80_949_450]);
    assert!(parse(ANSWER.as_bytes(), "read").is_err(), "nothing was read");
    assert!(parse(b"fio: pid=1, err=28", "write").is_err());
}

/// F2: each line's bytes lie in the samples that its time touches, and none is lost.
#[test]
fn logs_become_rates() {
    let mut rates = vec![0.0; 7];
    add_log(LOG, 4096, Duration::from_millis(100), &mut rates);
    let whole = |at: usize| (rates[at] / 10.0 / 4096.0 * 1000.0).round() / 1000.0;
    assert_eq!([whole(0), whole(1), whole(5), whole(6)], [10_000.0, 1.0, 1.0, 1000.0]);
    let sum: f64 = rates.iter().sum();
    assert!((sum / 10.0 / 4096.0 - 11_005.0).abs() < 1e-6, "{sum}");
    add_log(LOG, 4096, Duration::from_millis(100), &mut rates);
    assert!((rates.iter().sum::<f64>() / sum - 2.0).abs() < 1e-9, "of a second job");
}

/// F1: busy time grows linearly between two samples, and not at all outside of the samples.
#[test]
fn looks_are_joined() {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let looks = [(at(100), 5.0), (at(200), 7.0), (at(300), 7.0)];
    assert!((between(&looks, at(150), at(250)) - 1.0).abs() < 1e-9);
    assert!((between(&looks, at(0), at(900)) - 2.0).abs() < 1e-9);
}

/// The name of each job comes before the options of that job.
#[test]
fn arguments_are_complete() {
    let second = Duration::from_secs(1);
    let work = FioWork::RandomWrites { direct: true, time: 2 * second, ramp: second / 2 };
    let engine = Engine::Libaio { depth: 64 };
    let fio = Fio { engine, work, block: 65536, bytes: 1 << 20, step: Some(second / 10) };
    let places = [0, 1].map(|job| Place { path: "/dev/loop7".into(), offset: job << 20 });
    let all = fio.arguments(&places, Some(Path::new("/tmp/logs"))).join(" ");
    assert!(all.contains("--ioengine=libaio --iodepth=64 --rw=randwrite"), "{all}");
    assert!(all.contains("--direct=1 --time_based=1 --runtime=2000ms --ramp_time=500ms"), "{all}");
    assert!(all.contains("--write_hist_log=/tmp/logs/job --log_hist_msec=20"), "{all}");
    assert!(all.ends_with("--name=job-1 --filename=/dev/loop7 --offset=1048576"), "{all}");
}
