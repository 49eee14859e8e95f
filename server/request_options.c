/* request_options */
typedef int fired_request_options_is_not_written_yet;
