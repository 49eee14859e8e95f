/* cost */
typedef int fired_cost_is_not_written_yet;
