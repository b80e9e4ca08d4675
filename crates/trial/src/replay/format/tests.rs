//! Formats against lines as their makers publish them.

use super::*;

fn read(format: &str, line: &str, names: &[&str]) -> Result<(String, Vec<Option<String>>), String> {
    let mut format = Format::parse(format, Some("time")).map_err(|error| error.to_string())?;
    let variables = names.iter().map(|name| format.variable(name, None));
    let variables = variables.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    let mut fields = Fields::default();
    let line = format.read(line.as_bytes(), &mut fields).map_err(|error| error.to_string())?;
    let time = format.time(&line).map_err(|error| error.to_string())?;
    let values = variables.iter().map(|variable| variable.value(&line).map(|value| value.into_owned()));
    Ok((stamp::show(time), values.collect()))
}

fn check(format: &str, line: &str, time: &str, expected: &[(&str, &str)]) {
    let (names, values): (Vec<_>, Vec<_>) = expected.iter().copied().unzip();
    let values = values.iter().map(|value| (!value.is_empty()).then(|| (*value).to_owned())).collect();
    assert_eq!(read(format, line, &names), Ok((time.to_owned(), values)), "{line}");
}

#[test]
fn the_combined_example_of_apaches_documentation() {
    let line = r#"127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326 "http://www.example.com/start.html" "Mozilla/4.08 [en] (Win98; I ;Nav)""#;
    let expected = [
        ("remote_addr", "127.0.0.1"),
        ("remote_address", "127.0.0.1"),
        ("remote_user", "frank"),
        ("method", "GET"),
        ("request_uri", "/apache_pb.gif"),
        ("path", "/apache_pb.gif"),
        ("status", "200"),
        ("http_referer", "http://www.example.com/start.html"),
        ("http_user_agent", "Mozilla/4.08 [en] (Win98; I ;Nav)"),
    ];
    check("combined", line, "2000-10-10T20:55:36Z", &expected);
}

#[test]
fn the_default_example_of_envoys_documentation() {
    let line = r#"[2016-04-15T20:17:00.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80""#;
    let expected = [
        ("method", "POST"),
        ("request_uri", "/api/v1/locations"),
        ("path", "/api/v1/locations"),
        ("status", "204"),
        ("response_flags", ""),
        ("duration", "226"),
        ("http_x_forwarded_for", "10.0.35.28"),
        ("http_user_agent", "nsq2http"),
        ("host", "locations"),
        ("upstream_host", "tcp://10.0.2.1:80"),
    ];
    check("envoy", line, "2016-04-15T20:17:00.31Z", &expected);
}

#[test]
fn formats_of_ones_own() {
    check(
        "$remote_addr [$time_iso8601] $host \"$request\" ${status}s $http_x_user",
        "::1 [2015-05-17T12:05:03+02:00] shop \"GET /a?k=v HTTP/1.1\" 200s alice",
        "2015-05-17T10:05:03Z",
        &[("http_x_user", "alice"), ("host", "shop"), ("arg_k", "v"), ("status", "200")],
    );
    check(
        "$msec $request_uri",
        "1431857103.250 /x",
        "2015-05-17T10:05:03.25Z",
        &[("path", "/x"), ("arg_k", "")],
    );
    check(
        "%START_TIME(%s.%3f)% 100%% %REQ(X-USER):20% %DOWNSTREAM_REMOTE_ADDRESS% %RESPONSE_CODE%\n",
        "1431857103.250 100% alice [::1]:443 429",
        "2015-05-17T10:05:03.25Z",
        &[("http_x_user", "alice"), ("remote_addr", "::1"), ("status", "429")],
    );
    check(
        "json",
        r#"{"time": 1431857103.25, "user": "a\"b", "n": 7, "is": true, "no": null, "request": {"path": "/x"}, "a.b": "c"}"#,
        "2015-05-17T10:05:03.25Z",
        &[("user", "a\"b"), ("n", "7"), ("is", "true"), ("no", ""), ("request.path", "/x"), ("a.b", "c")],
    );
}

#[test]
fn a_quote_within_quotes_is_escaped() {
    let line = r#"h - - [17/May/2015:10:05:03 +0000] "GET /\"\\" 200 1 "a\\\"" "b\" c\\""#;
    let expected =
        [("request", r#"GET /\"\\"#), ("http_referer", r#"a\\\""#), ("http_user_agent", r#"b\" c\\"#)];
    check("combined", line, "2015-05-17T10:05:03Z", &expected);
}

#[test]
fn what_is_no_format_is_refused() {
    for (format, expected) in [
        ("common", "\"common\" is no format (expected combined, envoy, json, or"),
        ("$a$time_local", "nothing stands between a and time_local"),
        ("$a $", "\"$\" is no value of a format (expected a name after `$`)"),
        ("$a $b", "does not say when a request came (expected $time_local, $time_iso8601 or $msec)"),
        ("%START_TIME", "is no value of a format (expected %OPERATOR%"),
        ("%PROTOCOL%", "does not say when a request came (expected %START_TIME%)"),
        ("%START_TIME(%Q)% x", "`%Q` is not supported in a format of timestamps"),
    ] {
        let error = Format::parse(format, None).expect_err(format).to_string();
        assert!(error.contains(expected), "{format}: {error}");
    }
    let many = "$time_local ".to_owned() + &"$a ".repeat(FIELDS_MAX);
    assert_eq!(Format::parse(&many, None).unwrap_err(), FormatError::TooMany);
    assert!(Format::parse("json", None).unwrap_err().to_string().contains("--time KEY"));
}

#[test]
fn what_is_no_line_is_reported_with_its_place() {
    let good = r#"h - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "-" "-""#;
    assert!(read("combined", good, &[]).is_ok());
    for (line, expected) in [
        ("", "column 1: expected \" - \" there or further on"),
        ("h - - 17/May", "column 5: expected \" [\" there or further on"),
        (&good.replace("May", "Mai"), "column 8: expected a time"),
        (&format!("{good} more"), "column 66: expected the end of the line"),
        (&good[..good.len() - 1], "column 64: expected \"\\\"\" there or further on"),
    ] {
        assert_eq!(read("combined", line, &[]).unwrap_err(), expected, "{line}");
    }
    for (line, expected) in [
        ("[]", "column 1: expected an object in JSON"),
        ("{\"time\": ", "column 9: expected JSON"),
        ("{}", "column 1: expected a time"),
    ] {
        assert_eq!(read("json", line, &[]).unwrap_err(), expected, "{line}");
    }
}

/// `a.b` is the key of that name, else `b` in the object `a`, wherever they stand.
#[test]
fn a_key_with_points_comes_before_objects_in_each_other() {
    for (line, expected) in [
        (r#"{"time": 1, "a": {"b": "inner"}, "a.b": "outer"}"#, Some("outer")),
        (r#"{"time": 1, "a.b": "outer", "a": {"b": "inner"}}"#, Some("outer")),
        (r#"{"time": 1, "a": {"b": "inner", "c": [{}]}, "z": {"a.b": 1}}"#, Some("inner")),
        (r#"{"time": 1, "a": {"b": "inner"}, "a.b": null}"#, None),
        (r#"{"time": 1, "a": {"b": {"c": 1}}}"#, None),
        (r#"{"time": 1, "a": [{"b": 1}]}"#, None),
        (r#"{"time": 1, "a": {"b": -1.50}}"#, Some("-1.5")),
        (r#"{"time": 1, "\u0061": {"b": "\ud83d\ude00"}}"#, Some("\u{1f600}")),
    ] {
        let values = read("json", line, &["a.b"]).expect(line).1;
        assert_eq!(values[0].as_deref(), expected, "{line}");
    }
    let two = read("json", r#"{"time": 1, "a": {"b": {"c": 1}, "x": true}}"#, &["a.b.c", "a.b", "a.x"]);
    assert_eq!(two.expect("good").1, [Some("1".to_owned()), None, Some("true".to_owned())]);
}
