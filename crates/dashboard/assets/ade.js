// Entry of every page. All of it is an enhancement: without scripts, links and forms do the same.

import { startDecisions } from "./decide.js";
import { startForms, startMenus } from "./forms.js";
import { startKeys } from "./keys.js";
import { startLists } from "./lists.js";
import { startFollowing } from "./live.js";
import { startTimes } from "./times.js";

startTimes();
startMenus();
startForms();
startLists();
startDecisions();
startKeys();
startFollowing();
