/* config_alerts: one entry of the list `alerts` of the settings file. */
#ifndef FIRED_CONFIG_ALERTS_H
#define FIRED_CONFIG_ALERTS_H

#include "alerts.h"
#include "status.h"

/* As the file has it; NULL: left out. Run and layer default to "*", kind to threshold, op to ">",
 * hold to 0. */
struct config_alert_text {
    char *name;
    char *run;
    char *layer;
    char *statistic;
    char *kind;
    char *op;
    char *value;
    char *window;
    char *hold;
};

/* `origin` is for the message: "fired.yaml:12". */
FIRE_NODISCARD enum fire_status config_alert_read(const struct config_alert_text *text,
                                                  const char *origin, struct alert_rule *rule,
                                                  struct fire_error *error);

#endif
