-- Sends the same POST request repeatedly; at the end it writes a summary as JSON.
-- The file with the body is the only argument; the credential, its header, and the value of the
-- header Connection are in the environment.

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  wrk.headers["Content-Type"] = "application/json"
  wrk.headers[os.getenv("BENCHMARK_CREDENTIAL_HEADER")] = os.getenv("BENCHMARK_CREDENTIAL")
  wrk.headers["Connection"] = os.getenv("BENCHMARK_CONNECTION")
  file:close()
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "microseconds": %d, "median": %d, "percentile_99": %d, '
      .. '"failed": %d, "disconnected": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
