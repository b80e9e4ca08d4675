//! Random routes with `rate_limits`, and random requests. In: a seed. Out: a piece of a bootstrap, and requests.

use std::fmt::Write as _;

const TEXTS: [&str; 8] = ["Gold", "gold", "old", "7", "12", "a b", "silver,Gold", "x"];
const HOSTS: [&str; 8] = [
    "shop.example",
    "Shop.Example",
    "shop.example:8080",
    "www.shop.example",
    "api.shop.example",
    "api.test",
    "api.:80",
    "else",
];
const DOMAINS: [&str; 4] = ["shop.example", "'*.shop.example'", "'api.*'", "'*'"];
const ROUTES_EACH: u64 = 12;
/// Values of metadata; only texts make entries.
const METADATA: [&str; 16] = [
    "gold",
    "7",
    "'7'",
    "1.5",
    "1e3",
    "0x10",
    "'true'",
    "yes",
    "Off",
    "oN",
    "010",
    "08",
    "-3",
    "~",
    "''",
    "9007199254740993",
];

/// The value of entries that Envoy asks about when the request has ended.
pub const LATE: &str = "late";

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.below(from.len() as u64) as usize]
    }

    /// The text, one time in so many.
    fn at_times(&mut self, times: u64, text: &str) -> String {
        if self.one_in(times) { text.to_owned() } else { String::new() }
    }

    /// A list of at most so many items.
    fn list(&mut self, most: u64, item: impl Fn(&mut Self) -> String) -> String {
        let count = 1 + self.below(most);
        format!("[{}]", (0..count).map(|_| item(self)).collect::<Vec<_>>().join(", "))
    }
}

/// A `StringMatcher`.
fn text_test(random: &mut Random) -> String {
    let text = random.pick(&TEXTS);
    let ignores = random.at_times(3, ", ignore_case: true");
    match random.below(5) {
        0 => format!("{{exact: '{text}'{ignores}}}"),
        1 => format!("{{prefix: '{}'{ignores}}}", &text[..1]),
        2 => format!("{{suffix: '{}'{ignores}}}", &text[text.len() - 1..]),
        3 => format!("{{contains: '{text}'{ignores}}}"),
        _ => {
            let regex = random.pick(&["G.*", "[a-z]+", "old|x", "\\d{1,2}", ".*", "\\W*\\w+"]);
            format!("{{safe_regex: {{regex: '{regex}'}}}}")
        }
    }
}

fn header_matcher(random: &mut Random) -> String {
    let name = random.pick(&["x-a", "x-b", "X-A", ":method", ":path", "accept"]);
    let inverted = random.at_times(4, ", invert_match: true");
    let empty = random.at_times(5, ", treat_missing_header_as_empty: true");
    let test = match random.below(6) {
        0 => String::new(),
        1 => format!(", present_match: {}", random.pick(&["true", "false", "yes"])),
        2 => format!(", range_match: {{start: {}, end: {}}}", random.below(8), 8 + random.below(8)),
        3 => format!(", exact_match: '{}'", random.pick(&TEXTS)),
        _ => format!(", string_match: {}", text_test(random)),
    };
    format!("{{name: '{name}'{test}{inverted}{empty}}}")
}

fn parameter_matcher(random: &mut Random) -> String {
    let test = match random.below(3) {
        0 => format!("present_match: {}", random.one_in(2)),
        _ => format!("string_match: {}", text_test(random)),
    };
    format!("{{name: {}, {test}}}", random.pick(&["q", "p"]))
}

fn action(random: &mut Random) -> String {
    let skips = random.at_times(2, ", skip_if_absent: true");
    let expects = random.at_times(3, ", expect_match: false");
    let key = random.at_times(2, ", descriptor_key: k");
    match random.below(11) {
        0 => "{source_cluster: {}}".to_owned(),
        1 => "{destination_cluster: {}}".to_owned(),
        2 => "{remote_address: {}}".to_owned(),
        3 => format!("{{masked_remote_address: {{v4_prefix_mask_len: {}}}}}", random.below(33)),
        4 => format!("{{generic_key: {{descriptor_value: v{}{key}}}}}", random.below(9)),
        5 => {
            let name = random.pick(&["x-a", "X-B", ":path", ":method", ":authority", "accept", "user-agent"]);
            format!("{{request_headers: {{header_name: '{name}', descriptor_key: h{skips}}}}}")
        }
        6 => format!("{{query_parameters: {{query_parameter_name: q, descriptor_key: q{skips}}}}}"),
        7 => {
            let headers = random.list(2, header_matcher);
            format!("{{header_value_match: {{descriptor_value: hm{key}{expects}, headers: {headers}}}}}")
        }
        8 => {
            let parameters = random.list(2, parameter_matcher);
            format!(
                "{{query_parameter_value_match: {{descriptor_value: qm{key}{expects}, query_parameters: {parameters}}}}}"
            )
        }
        9 => {
            let (last, bits) = (random.below(8), 24 + random.below(9));
            let inverted = random.at_times(3, ", invert_match: true");
            format!(
                "{{remote_address_match: {{descriptor_value: am{key}, address_matcher: {{ranges: [{{address_prefix: \
                 127.0.0.{last}, prefix_len: {bits}}}]{inverted}}}}}}}"
            )
        }
        _ => {
            let default = random.at_times(3, ", default_value: none");
            let path = random.pick(&["[{key: plan}]", "[{key: deep}, {key: er}]", "[{key: absent}]"]);
            format!(
                "{{metadata: {{descriptor_key: m, source: ROUTE_ENTRY, metadata_key: {{key: shop, path: {path}}}{default}{skips}}}}}"
            )
        }
    }
}

/// `rate_limits` of a route.
fn rate_limits(random: &mut Random) -> String {
    random.list(4, |random| {
        let stage = random.at_times(6, "stage: 1, ");
        item(random, &stage)
    })
}

/// `rate_limits` of a filter.
fn own_rate_limits(random: &mut Random) -> String {
    random.list(3, |random| item(random, ""))
}

fn item(random: &mut Random, stage: &str) -> String {
    if random.one_in(8) {
        let late = format!("{{generic_key: {{descriptor_value: {LATE}}}}}");
        return format!("{{{stage}apply_on_stream_done: true, actions: [{late}]}}");
    }
    let hits = random.at_times(5, "hits_addend: {number: 3}, ");
    format!("{{{stage}{hits}{}actions: {}}}", limit(random), random.list(3, action))
}

fn limit(random: &mut Random) -> String {
    random.at_times(8, "limit: {rate_limit: {requests_per_unit: 7, unit: HOUR}}, ")
}

/// What a route or a virtual host says of the filter, or nothing.
fn of_filter(random: &mut Random) -> String {
    let filter = "envoy.filters.http.ratelimit";
    let switch = "type.googleapis.com/envoy.config.route.v3.FilterConfig";
    let mut config =
        "'@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute"
            .to_owned();
    let _ = match random.below(5) {
        0 => write!(config, ", vh_rate_limits: {}", random.pick(&["OVERRIDE", "INCLUDE", "IGNORE", "1"])),
        1 => write!(config, ", domain: other"),
        2 => write!(config, ", rate_limits: {}", own_rate_limits(random)),
        _ => return String::new(),
    };
    match random.below(6) {
        0 => format!(", typed_per_filter_config: {{{filter}: {{'@type': {switch}, disabled: true}}}}"),
        1 => format!(", typed_per_filter_config: {{{filter}: {{'@type': {switch}, config: {{}}}}}}"),
        2 => format!(", typed_per_filter_config: {{{filter}: {{'@type': {switch}, config: {{{config}}}}}}}"),
        _ => format!(", typed_per_filter_config: {{{filter}: {{{config}}}}}"),
    }
}

fn route(random: &mut Random, number: u64) -> String {
    let mut condition = match random.below(5) {
        0 => format!("prefix: /r{number}"),
        1 => format!("path: /r{number}/x"),
        2 => format!("path_separated_prefix: /R{number}, case_sensitive: false"),
        3 => format!("path_separated_prefix: /r{number}"),
        _ => format!("safe_regex: {{regex: '/r{number}(/.*)?'}}"),
    };
    if random.one_in(4) {
        let _ = write!(condition, ", headers: {}", random.list(1, header_matcher));
    }
    if random.one_in(5) {
        let _ = write!(condition, ", query_parameters: {}", random.list(1, parameter_matcher));
    }
    let limits =
        if random.one_in(4) { String::new() } else { format!(", rate_limits: {}", rate_limits(random)) };
    let include = random.at_times(3, ", include_vh_rate_limits: true");
    let (of_filter, plan, deep) = (of_filter(random), random.pick(&METADATA), random.pick(&METADATA));
    let leads = match random.below(12) {
        0 => "direct_response: {status: 200}".to_owned(),
        _ => format!("route: {{cluster: application{limits}{include}}}"),
    };
    let metadata = format!("metadata: {{filterMetadata: {{shop: {{plan: {plan}, deep: {{er: {deep}}}}}}}}}");
    format!("{{name: r{number}, match: {{{condition}}}, {metadata}{of_filter}, {leads}}}")
}

/// Virtual hosts with routes of all kinds.
pub fn virtual_hosts(random: &mut Random) -> String {
    let mut text = String::new();
    for (host, domain) in DOMAINS.into_iter().enumerate() {
        let limits =
            if random.one_in(4) { String::new() } else { format!(", rate_limits: {}", rate_limits(random)) };
        let of_filter = of_filter(random);
        let _ = writeln!(text, "            - name: host{host}\n              domains: [{domain}]");
        for part in [limits, of_filter] {
            let _ = writeln!(text, "              {}", part.trim_start_matches(", "));
        }
        let _ = writeln!(text, "              routes:");
        (0..ROUTES_EACH).for_each(|number| _ = writeln!(text, "              - {}", route(random, number)));
    }
    text + &random.at_times(2, "            ignore_port_in_host_matching: true\n")
}

/// A request, as a client sends it.
#[derive(Debug)]
pub struct Request {
    pub method: &'static str,
    pub path: String,
    /// The last part of its address.
    pub from: u8,
    pub headers: Vec<(&'static str, &'static str)>,
}

/// A request for one of the routes.
pub fn request(random: &mut Random) -> Request {
    let rest =
        random.pick(&["", "/x", "/x?q=Gold", "/x?q=7&p=old", "?q=%47old&q=2", "y", "?p", "/x?q=a%20b"]);
    let mut headers = vec![("host", random.pick(&HOSTS))];
    for name in ["x-a", "x-b", "x-a", "accept", "accept", "user-agent"] {
        if random.one_in(2) {
            headers.push((name, random.pick(&TEXTS)));
        }
    }
    Request {
        method: random.pick(&["GET", "POST"]),
        path: format!("/r{}{rest}", random.below(ROUTES_EACH + 1)),
        from: 2 + random.below(9) as u8,
        headers,
    }
}
