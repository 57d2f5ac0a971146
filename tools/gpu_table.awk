# gpu_table.awk: gpu.csv as a table for people, beside goals and llama.cpp's figures for an H100
# (bench/device/card/h100.csv).  On an H100 each goal is said to be met or missed, or not measured; elsewhere none is.
BEGIN { FS = "," }
/^# card:/ && FNR != NR && !/H100/ { note = "# goals and llama.cpp's figures are for an H100, which this is not" }
/^# card:/ && FNR != NR && /H100/ { claims = 1 }
/^#/ { if (FNR != NR) print; next }
FNR == NR { key = $1 "," $2; goal[key] = $4; peer[key] = $5; if ($4 != "" && FNR > 1 && $6 ~ /^goal/) order[++goals] = key; next }
$1 == "part" {
  if (note != "") print note
  printf "\n%-8s %-44s %12s %-8s %7s %8s %8s %10s %6s  %s\n", "part", "what", "value", "", "spread", "of limit",
    "goal", "llama.cpp", "ratio", "asserted"
  next
}
{
  key = $1 "," $2
  share = $4 != "" && $6 + 0 > 0 && $3 ~ /GB/ ? sprintf("%.0f%%", 100 * $4 / $6) : ""
  ratio = $4 != "" && peer[key] != "" ? sprintf("%.2fx", $4 / peer[key]) : ""
  printf "%-8s %-44s %12s %-8s %7s %8s %8s %10s %6s  %s\n", $1, $2, $4, $3, $5, share, goal[key], peer[key], ratio, $7
  if (goal[key] != "" && $4 != "" && $7 ~ /^ok/) {
    bound = goal[key] ~ /%/ ? goal[key] / 100 * $6 : goal[key] + 0
    if (bound > 0) said[key] = ($3 == "us" || $3 == "ms" ? $4 + 0 <= bound : $4 + 0 >= bound) ? "met" : "MISSED"
    reached[key] = sprintf("%s of %s %s", $4, goal[key] ~ /%/ ? sprintf("%.4g", bound) : goal[key], $3)
  }
  if ($7 ~ /^FAILED/) failed++
  else if ($7 ~ /^ok/) held++
  else out++
}
END {
  for (i = 1; i <= goals && claims; i++) {
    if (i == 1) print "\ngoals for an H100"
    key = order[i]
    printf "%-12s %s%s\n", key in said ? said[key] : "not measured", key, key in said ? ": " reached[key] : ""
    if (!(key in said)) open++
    else if (said[key] == "met") met++
    else missed++
  }
  if (claims) printf "%d goals met, %d missed, %d not measured\n", met, missed, open
  printf "\n%d held, %d failed, %d left out\n", held, failed, out
}
